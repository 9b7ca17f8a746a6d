import com.alibaba.fastjson.JSONObject;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.PushConsumer;
import org.apache.rocketmq.client.apis.message.MessageView;

/** The operations of push consumers, which record deliveries and fail each message a given number of times. */
final class GrpcPushConsumers {
    private static final Map<String, Session> SESSIONS = new ConcurrentHashMap<>();

    private GrpcPushConsumers() {
    }

    static void register() {
        CommandLoop.OPERATIONS.put("push.start", command -> {
            SESSIONS.put(command.getString("name"), new Session(command));
            return null;
        });
        CommandLoop.OPERATIONS.put("push.stop", command -> {
            SESSIONS.remove(command.getString("name")).consumer.close();
            return null;
        });
        CommandLoop.OPERATIONS.put("push.received", command -> Waiting.untilSize(
            SESSIONS.get(command.getString("name")).received, command.getIntValue("count"), command.getLongValue("timeout")));
    }

    private static final class Session {
        final PushConsumer consumer;
        final List<Object> received = new ArrayList<>();
        private final int failures;

        Session(JSONObject command) throws Exception {
            failures = command.getIntValue("failures");
            consumer = GrpcSettings.PROVIDER.newPushConsumerBuilder()
                .setClientConfiguration(GrpcSettings.configuration(command))
                .setConsumerGroup(command.getString("group"))
                .setSubscriptionExpressions(GrpcSettings.filters(command))
                .setConsumptionThreadCount(4)
                .setMessageListener(this::consume)
                .build();
        }

        /** Fails the first deliveries of a message, all of them for -1. */
        private ConsumeResult consume(MessageView message) {
            synchronized (received) {
                received.add(GrpcSettings.describe(message));
                received.notifyAll();
            }
            boolean good = failures >= 0 && message.getDeliveryAttempt() > failures;
            return good ? ConsumeResult.SUCCESS : ConsumeResult.FAILURE;
        }
    }
}
