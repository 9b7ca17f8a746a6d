import com.alibaba.fastjson.JSONObject;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.client.apis.message.Message;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.ProducerBuilder;
import org.apache.rocketmq.client.apis.producer.SendReceipt;
import org.apache.rocketmq.client.apis.producer.Transaction;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;

/** The operations of producers, which also send and check transactions. */
final class GrpcProducers {
    private static final Map<String, Session> SESSIONS = new ConcurrentHashMap<>();

    private GrpcProducers() {
    }

    static void register() {
        CommandLoop.OPERATIONS.put("producer.start", command -> {
            SESSIONS.put(command.getString("name"), new Session(command));
            return null;
        });
        CommandLoop.OPERATIONS.put("producer.stop", command -> {
            SESSIONS.remove(command.getString("name")).producer.close();
            return null;
        });
        CommandLoop.OPERATIONS.put("send", command -> of(command).send(command));
        CommandLoop.OPERATIONS.put("transaction.send", command -> of(command).sendHalf(command));
        CommandLoop.OPERATIONS.put("transaction.checks", command -> of(command)
            .waitForChecks(command.getIntValue("count"), command.getLongValue("timeout")));
        CommandLoop.OPERATIONS.put("recall", command -> of(command).producer
            .recallMessage(command.getString("topic"), command.getString("handle")).getMessageId().toString());
    }

    private static Session of(JSONObject command) {
        return SESSIONS.get(command.getString("name"));
    }

    private static final class Session {
        final Producer producer;
        private final List<Object> checks = new ArrayList<>();

        Session(JSONObject command) throws Exception {
            ProducerBuilder builder = GrpcSettings.PROVIDER.newProducerBuilder()
                .setClientConfiguration(GrpcSettings.configuration(command))
                .setTopics(command.getJSONArray("topics").toArray(new String[0]))
                .setMaxAttempts(command.containsKey("attempts") ? command.getIntValue("attempts") : 3);
            if (command.getBooleanValue("transactions")) {
                builder.setTransactionChecker(this::check);
            }
            producer = builder.build();
        }

        List<Object> send(JSONObject command) throws Exception {
            List<Object> receipts = new ArrayList<>();
            for (Object value : command.getJSONArray("messages")) {
                receipts.add(describe(producer.send(GrpcSettings.message((JSONObject) value))));
            }
            return receipts;
        }

        /** Sends a half message in a transaction of its own, and ends it as "end" says: commit, rollback or nothing. */
        Object sendHalf(JSONObject command) throws Exception {
            Message message = GrpcSettings.message(command.getJSONObject("message"));
            Transaction transaction = producer.beginTransaction();
            SendReceipt receipt = producer.send(message, transaction);
            if ("commit".equals(command.getString("end"))) {
                transaction.commit();
            } else if ("rollback".equals(command.getString("end"))) {
                transaction.rollback();
            }
            return describe(receipt);
        }

        /** Answers a check as the message's property "check" says, and records it. */
        private TransactionResolution check(MessageView message) {
            synchronized (checks) {
                checks.add(GrpcSettings.describe(message));
                checks.notifyAll();
            }
            return TransactionResolution.valueOf(message.getProperties().getOrDefault("check", "UNKNOWN"));
        }

        Object waitForChecks(int count, long timeout) throws InterruptedException {
            return Waiting.untilSize(checks, count, timeout);
        }

        private static Map<String, Object> describe(SendReceipt receipt) {
            Map<String, Object> result = new LinkedHashMap<>();
            result.put("id", receipt.getMessageId().toString());
            result.put("recall_handle", receipt.getRecallHandle());
            return result;
        }
    }
}
