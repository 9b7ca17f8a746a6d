import com.alibaba.fastjson.JSONObject;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyContext;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyContext;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;

/** The operations of push consumers, each of which records its deliveries and fails each message a given number of times. */
final class PushConsumers {
    private static final Map<String, Session> SESSIONS = new ConcurrentHashMap<>();

    private PushConsumers() {
    }

    static void register() {
        CommandLoop.OPERATIONS.put("push.start", command -> {
            Session session = new Session(command);
            session.consumer.start();
            SESSIONS.put(command.getString("name"), session);
            return null;
        });
        CommandLoop.OPERATIONS.put("push.stop", command -> {
            Session session = SESSIONS.remove(command.getString("name"));
            session.consumer.shutdown();
            if (session.replier != null) {
                session.replier.shutdown();
            }
            return session.received(0, 0);
        });
        CommandLoop.OPERATIONS.put("push.received", command -> SESSIONS.get(command.getString("name"))
            .received(command.getIntValue("count"), command.getLongValue("timeout")));
        CommandLoop.OPERATIONS.put("push.take", command -> SESSIONS.get(command.getString("name"))
            .take(command.getIntValue("limit")));
        CommandLoop.OPERATIONS.put("push.queues", command -> SESSIONS.get(command.getString("name")).queues());
        CommandLoop.OPERATIONS.put("push.suspend", command -> {
            DefaultMQPushConsumer consumer = SESSIONS.get(command.getString("name")).consumer;
            if (command.getBooleanValue("resume")) {
                consumer.resume();
            } else {
                consumer.suspend();
            }
            return null;
        });
    }

    private static final class Session {
        final DefaultMQPushConsumer consumer;
        final DefaultMQProducer replier;
        private final int failures;
        private final int delayLevel;
        private final List<Map<String, Object>> received = new ArrayList<>();
        private final Map<String, AtomicInteger> attempts = new ConcurrentHashMap<>();

        Session(JSONObject command) throws Exception {
            consumer = new DefaultMQPushConsumer(command.getString("group"), Settings.signing(command),
                new AllocateMessageQueueAveragely(), command.getBooleanValue("trace"), null);
            Settings.patient(consumer, command);
            consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
            consumer.setConsumeThreadMin(4);
            consumer.setConsumeThreadMax(4);
            consumer.setPollNameServerInterval(1000);
            consumer.setHeartbeatBrokerInterval(1000);
            consumer.setPersistConsumerOffsetInterval(500);
            // Otherwise a stop may come before the client has counted the last received message as consumed.
            consumer.setAwaitTerminationMillisWhenShutdown(5000);
            Settings.apply(consumer, command.getJSONObject("settings"));
            failures = command.getIntValue("failures");
            delayLevel = command.getIntValue("delay_level");
            for (Object value : command.getJSONArray("subscriptions")) {
                subscribe((JSONObject) value);
            }
            if (command.getBooleanValue("orderly")) {
                consumer.registerMessageListener((MessageListenerOrderly) this::orderly);
            } else {
                consumer.registerMessageListener((MessageListenerConcurrently) this::concurrently);
            }
            replier = command.getBooleanValue("reply") ? new DefaultMQProducer(command.getString("group") + "_reply", Settings.signing(command)) : null;
            if (replier != null) {
                Settings.patient(replier, command);
                replier.start();
            }
        }

        private void subscribe(JSONObject value) throws Exception {
            if (value.containsKey("sql")) {
                consumer.subscribe(value.getString("topic"), MessageSelector.bySql(value.getString("sql")));
            } else {
                consumer.subscribe(value.getString("topic"), value.getOrDefault("tags", "*").toString());
            }
        }

        /** Records deliveries; returns true if all of them succeed. */
        private boolean accept(List<MessageExt> messages) {
            boolean good = true;
            synchronized (received) {
                for (MessageExt message : messages) {
                    received.add(Settings.describe(message));
                    int attempt = attempts.computeIfAbsent(message.getMsgId(), id -> new AtomicInteger()).incrementAndGet();
                    good &= failures >= 0 && attempt > failures;
                }
                received.notifyAll();
            }
            return good;
        }

        private ConsumeConcurrentlyStatus concurrently(List<MessageExt> messages, ConsumeConcurrentlyContext context) {
            boolean good = accept(messages);
            if (delayLevel != 0) {
                context.setDelayLevelWhenNextConsume(delayLevel);
            }
            if (replier != null) {
                reply(messages.get(0));
            }
            return good ? ConsumeConcurrentlyStatus.CONSUME_SUCCESS : ConsumeConcurrentlyStatus.RECONSUME_LATER;
        }

        private void reply(MessageExt message) {
            try {
                replier.send(MessageUtil.createReplyMessage(message, ("re: " + new String(message.getBody())).getBytes()));
            } catch (Exception error) {
                System.err.println(error);
            }
        }

        private ConsumeOrderlyStatus orderly(List<MessageExt> messages, ConsumeOrderlyContext context) {
            boolean good = accept(messages);
            context.setSuspendCurrentQueueTimeMillis(100);
            return good ? ConsumeOrderlyStatus.SUCCESS : ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT;
        }

        /** Returns the oldest deliveries, and forgets them. */
        Object take(int limit) {
            synchronized (received) {
                List<Map<String, Object>> oldest = received.subList(0, Math.min(limit, received.size()));
                List<Map<String, Object>> taken = new ArrayList<>(oldest);
                oldest.clear();
                return taken;
            }
        }

        Object received(int count, long timeout) throws InterruptedException {
            long deadline = System.currentTimeMillis() + timeout;
            synchronized (received) {
                while (received.size() < count && System.currentTimeMillis() < deadline) {
                    received.wait(Math.max(1, deadline - System.currentTimeMillis()));
                }
                return new ArrayList<>(received);
            }
        }

        Object queues() {
            List<Object> result = new ArrayList<>();
            consumer.getDefaultMQPushConsumerImpl().getRebalanceImpl().getProcessQueueTable().keySet()
                .forEach(queue -> result.add(Settings.describe(queue)));
            return result;
        }
    }
}
