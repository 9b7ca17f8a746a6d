import com.alibaba.fastjson.JSONObject;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.MessageView;

/** The operations of simple consumers; a received message is known by its number ("index") from then on. */
final class GrpcSimpleConsumers {
    private static final Map<String, Session> SESSIONS = new ConcurrentHashMap<>();

    private GrpcSimpleConsumers() {
    }

    static void register() {
        CommandLoop.OPERATIONS.put("simple.start", command -> {
            SESSIONS.put(command.getString("name"), new Session(command));
            return null;
        });
        CommandLoop.OPERATIONS.put("simple.stop", command -> {
            SESSIONS.remove(command.getString("name")).consumer.close();
            return null;
        });
        CommandLoop.OPERATIONS.put("simple.receive", command -> of(command)
            .receive(command.getIntValue("count"), Duration.ofMillis(command.getLongValue("invisible_ms"))));
        CommandLoop.OPERATIONS.put("simple.ack", command -> {
            of(command).consumer.ack(of(command).message(command));
            return null;
        });
        CommandLoop.OPERATIONS.put("simple.change", command -> {
            of(command).consumer.changeInvisibleDuration(
                of(command).message(command), Duration.ofMillis(command.getLongValue("invisible_ms")));
            return null;
        });
    }

    private static Session of(JSONObject command) {
        return SESSIONS.get(command.getString("name"));
    }

    private static final class Session {
        final SimpleConsumer consumer;
        private final List<MessageView> received = new ArrayList<>();

        Session(JSONObject command) throws Exception {
            consumer = GrpcSettings.PROVIDER.newSimpleConsumerBuilder()
                .setClientConfiguration(GrpcSettings.configuration(command))
                .setConsumerGroup(command.getString("group"))
                .setAwaitDuration(Duration.ofMillis(command.getLongValue("await_ms")))
                .setSubscriptionExpressions(GrpcSettings.filters(command))
                .build();
        }

        List<Object> receive(int count, Duration invisible) throws Exception {
            List<MessageView> messages = consumer.receive(count, invisible);
            List<Object> result = new ArrayList<>();
            synchronized (received) {
                for (MessageView message : messages) {
                    Map<String, Object> described = GrpcSettings.describe(message);
                    described.put("index", received.size());
                    received.add(message);
                    result.add(described);
                }
            }
            return result;
        }

        MessageView message(JSONObject command) {
            synchronized (received) {
                return received.get(command.getIntValue("index"));
            }
        }
    }
}
