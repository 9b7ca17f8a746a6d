import com.alibaba.fastjson.JSONObject;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * The operations of transactional producers, which commands refer to by name. A message's property "local" is the state
 * returned after sending, "check" the state returned to the broker's check-back; without them the state is UNKNOW.
 */
final class Transactions {
    private static final Map<String, Session> SESSIONS = new ConcurrentHashMap<>();

    private Transactions() {
    }

    static void register() {
        CommandLoop.OPERATIONS.put("transaction.start", command -> {
            Session session = new Session(command);
            session.producer.start();
            SESSIONS.put(command.getString("name"), session);
            return null;
        });
        CommandLoop.OPERATIONS.put("transaction.stop", command -> {
            SESSIONS.remove(command.getString("name")).producer.shutdown();
            return null;
        });
        CommandLoop.OPERATIONS.put("transaction.send", command -> SESSIONS.get(command.getString("name")).send(command));
        CommandLoop.OPERATIONS.put("transaction.checks", command -> SESSIONS.get(command.getString("name"))
            .checks(command.getIntValue("count"), command.getLongValue("timeout")));
    }

    private static LocalTransactionState state(Message message, String property) {
        String name = message.getProperty(property);
        return name == null ? LocalTransactionState.UNKNOW : LocalTransactionState.valueOf(name);
    }

    private static final class Session implements TransactionListener {
        final TransactionMQProducer producer;
        private final List<Map<String, Object>> checks = new ArrayList<>();

        Session(JSONObject command) throws Exception {
            producer = new TransactionMQProducer(command.getString("group"), Settings.signing(command));
            Settings.patient(producer, command);
            producer.setSendMsgTimeout(10000);
            // Two producers of one group in one JVM must not share a connection.
            producer.setInstanceName(command.getString("name"));
            Settings.apply(producer, command.getJSONObject("settings"));
            producer.setTransactionListener(this);
        }

        @Override
        public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
            return state(message, "local");
        }

        @Override
        public synchronized LocalTransactionState checkLocalTransaction(MessageExt message) {
            Map<String, Object> check = Settings.describe(message);
            check.put("transaction_id", message.getTransactionId());
            checks.add(check);
            notifyAll();
            return state(message, "check");
        }

        Object send(JSONObject command) throws Exception {
            List<Object> results = new ArrayList<>();
            for (Object value : command.getJSONArray("messages")) {
                results.add(Producers.describe(producer.sendMessageInTransaction(Producers.message((JSONObject) value), null)));
            }
            return results;
        }

        synchronized List<Map<String, Object>> checks(int count, long timeoutMs) throws InterruptedException {
            long end = System.currentTimeMillis() + timeoutMs;
            for (long left = timeoutMs; checks.size() < count && left > 0; left = end - System.currentTimeMillis()) {
                wait(left);
            }
            return new ArrayList<>(checks);
        }
    }
}
