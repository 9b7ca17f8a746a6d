import com.alibaba.fastjson.JSONObject;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.selector.SelectMessageQueueByHash;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** The operations of producers, which commands refer to by name. */
final class Producers {
    private static final Map<String, DefaultMQProducer> PRODUCERS = new ConcurrentHashMap<>();
    /** Setters for timer messages by the names that commands use for them. */
    private static final Map<String, String> TIMERS = new LinkedHashMap<>();

    static {
        TIMERS.put("delay_s", "setDelayTimeSec");
        TIMERS.put("delay_ms", "setDelayTimeMs");
        TIMERS.put("deliver_ms", "setDeliverTimeMs");
    }

    private Producers() {
    }

    static void register() {
        CommandLoop.OPERATIONS.put("producer.start", Producers::start);
        CommandLoop.OPERATIONS.put("producer.stop", command -> {
            PRODUCERS.remove(command.getString("name")).shutdown();
            return null;
        });
        CommandLoop.OPERATIONS.put("send", Producers::send);
        CommandLoop.OPERATIONS.put("request", Producers::request);
        CommandLoop.OPERATIONS.put("queues", Producers::queues);
        CommandLoop.OPERATIONS.put("query", Producers::query);
        CommandLoop.OPERATIONS.put("view", Producers::view);
        CommandLoop.OPERATIONS.put("recall", Producers::recall);
    }

    private static Object start(JSONObject command) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(
            command.getString("group"), Settings.signing(command), command.getBooleanValue("trace"), null);
        Settings.patient(producer, command);
        producer.setSendMsgTimeout(10000);
        Settings.apply(producer, command.getJSONObject("settings"));
        producer.start();
        PRODUCERS.put(command.getString("name"), producer);
        return null;
    }

    private static DefaultMQProducer of(JSONObject command) {
        return PRODUCERS.get(command.getString("name"));
    }

    static Message message(JSONObject value) throws Exception {
        byte[] body;
        if (value.containsKey("size")) {
            body = new byte[value.getIntValue("size")];
            for (int i = 0; i < body.length; i++) {
                body[i] = (byte) ('a' + i * 31 % 26);
            }
        } else {
            body = value.getString("body").getBytes(StandardCharsets.UTF_8);
        }
        Message message = new Message(value.getString("topic"), body);
        if (value.containsKey("tags")) {
            message.setTags(value.getString("tags"));
        }
        if (value.containsKey("keys")) {
            message.setKeys(value.getString("keys"));
        }
        if (value.containsKey("delay")) {
            message.setDelayTimeLevel(value.getIntValue("delay"));
        }
        for (Map.Entry<String, String> timer : TIMERS.entrySet()) {
            if (value.containsKey(timer.getKey())) {
                // By reflection: these setters exist since 5.0, and this is compiled against 4.9.
                Message.class.getMethod(timer.getValue(), long.class).invoke(message, value.getLongValue(timer.getKey()));
            }
        }
        message.setFlag(value.getIntValue("flag"));
        if (value.containsKey("properties")) {
            for (Map.Entry<String, Object> entry : value.getJSONObject("properties").entrySet()) {
                message.putUserProperty(entry.getKey(), String.valueOf(entry.getValue()));
            }
        }
        return message;
    }

    private static Object send(JSONObject command) throws Exception {
        List<Message> messages = new ArrayList<>();
        for (Object value : command.getJSONArray("messages")) {
            messages.add(message((JSONObject) value));
        }
        String mode = command.getString("mode");
        if ("batch".equals(mode)) {
            List<Object> one = new ArrayList<>();
            one.add(describe(of(command).send(messages)));
            return one;
        }
        return "async".equals(mode) ? async(of(command), messages) : each(command, mode, messages);
    }

    private static Object each(JSONObject command, String mode, List<Message> messages) throws Exception {
        DefaultMQProducer producer = of(command);
        List<Object> results = new ArrayList<>();
        for (Message message : messages) {
            if ("oneway".equals(mode)) {
                producer.sendOneway(message);
            } else if ("queue".equals(mode)) {
                results.add(describe(producer.send(message, Settings.queue(command.getJSONObject("queue")))));
            } else if ("selector".equals(mode)) {
                int index = command.getIntValue("arg");
                results.add(describe(producer.send(message, (queues, m, arg) -> queues.get((Integer) arg % queues.size()), index)));
            } else if ("hash".equals(mode)) {
                results.add(describe(producer.send(message, new SelectMessageQueueByHash(), command.getString("arg"))));
            } else {
                results.add(describe(producer.send(message)));
            }
        }
        return results;
    }

    private static Object async(DefaultMQProducer producer, List<Message> messages) throws Exception {
        Object[] results = new Object[messages.size()];
        CountDownLatch left = new CountDownLatch(results.length);
        for (int i = 0; i < results.length; i++) {
            int index = i;
            producer.send(messages.get(i), new SendCallback() {
                @Override
                public void onSuccess(SendResult result) {
                    results[index] = describe(result);
                    left.countDown();
                }

                @Override
                public void onException(Throwable error) {
                    results[index] = Driver.describe(error);
                    left.countDown();
                }
            });
        }
        left.await(30, TimeUnit.SECONDS);
        return results;
    }

    private static Object request(JSONObject command) throws Exception {
        Message reply = of(command).request(message(command.getJSONObject("message")), command.getLongValue("timeout"));
        return Settings.text(reply);
    }

    static Map<String, Object> describe(SendResult result) {
        Map<String, Object> map = new LinkedHashMap<>();
        map.put("status", result.getSendStatus().name());
        map.put("msg_id", result.getMsgId());
        map.put("offset_msg_id", result.getOffsetMsgId());
        map.put("offset", result.getQueueOffset());
        map.put("queue", result.getMessageQueue().getQueueId());
        map.put("broker", result.getMessageQueue().getBrokerName());
        map.put("recall_handle", recallHandle(result));
        return map;
    }

    /** Returns the recall handle, which exists since client 5.3.2; null for older clients. */
    private static Object recallHandle(SendResult result) {
        try {
            return SendResult.class.getMethod("getRecallHandle").invoke(result);
        } catch (ReflectiveOperationException older) {
            return null;
        }
    }

    private static Object recall(JSONObject command) throws Exception {
        return DefaultMQProducer.class.getMethod("recallMessage", String.class, String.class)
            .invoke(of(command), command.getString("topic"), command.getString("handle"));
    }

    private static Object queues(JSONObject command) throws Exception {
        List<Object> results = new ArrayList<>();
        for (MessageQueue queue : of(command).fetchPublishMessageQueues(command.getString("topic"))) {
            results.add(Settings.describe(queue));
        }
        return results;
    }

    private static Object query(JSONObject command) throws Exception {
        List<Object> results = new ArrayList<>();
        long now = System.currentTimeMillis();
        for (MessageExt message : of(command).queryMessage(command.getString("topic"), command.getString("key"), 32,
            now - 3600_000, now + 3600_000).getMessageList()) {
            results.add(Settings.describe(message));
        }
        return results;
    }

    private static Object view(JSONObject command) throws Exception {
        return Settings.describe(of(command).viewMessage(command.getString("topic"), command.getString("msg_id")));
    }
}
