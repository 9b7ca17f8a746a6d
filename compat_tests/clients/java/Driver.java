import java.util.Map;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;

/**
 * Drives a stock Java client by commands, see CommandLoop. Compiled once against client 4.9; runs on 4.9 and 5.x.
 */
public final class Driver {
    private Driver() {
    }

    public static void main(String[] args) throws Exception {
        CommandLoop loop = new CommandLoop(Driver::responseCode);
        Producers.register();
        PushConsumers.register();
        PullConsumers.register();
        Transactions.register();
        CommandLoop.OPERATIONS.put("tls", command -> {
            Settings.applyTls(command.getJSONObject("fields"));
            return null;
        });
        registerAdmin();
        loop.run();
    }

    /** Registers the admin operations if present: they need the tools jar of 5.x and are compiled separately. */
    private static void registerAdmin() {
        try {
            Class.forName("AdminTools").getDeclaredMethod("register").invoke(null);
        } catch (ReflectiveOperationException | LinkageError missing) {
            System.err.println("no admin operations: " + missing);
        }
    }

    static Map<String, Object> describe(Throwable error) {
        return CommandLoop.describe(error, Driver::responseCode);
    }

    private static int responseCode(Throwable error) {
        if (error instanceof MQBrokerException) {
            return ((MQBrokerException) error).getResponseCode();
        }
        return error instanceof MQClientException ? ((MQClientException) error).getResponseCode() : -1;
    }
}
