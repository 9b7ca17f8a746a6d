import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.Message;

/**
 * Calls another class's main method several times in this process. Arguments: topic class times. For programs with a
 * hard-coded message count and a send timeout of 3 s: a message sent to the topic first warms up the process, so that the
 * timeout holds on a busy machine.
 */
public final class RepeatMain {
    private RepeatMain() {
    }

    public static void main(String[] args) {
        try {
            warmUp(args[0]);
            java.lang.reflect.Method main = Class.forName(args[1]).getMethod("main", String[].class);
            for (int i = 0; i < Integer.parseInt(args[2]); i++) {
                main.invoke(null, (Object) new String[0]);
            }
        } catch (Exception error) {
            error.printStackTrace();
            System.exit(1); // a client's threads would keep the process alive
        }
    }

    private static void warmUp(String topic) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("warm_up");
        producer.setSendMsgTimeout(60_000);
        producer.start();
        for (int attempt = 1; ; attempt++) {
            try {
                producer.send(new Message(topic, new byte[1]));
                break;
            } catch (RuntimeException | MQClientException error) { // the route lookup has a timeout of its own
                if (attempt == 10) {
                    throw error;
                }
            }
        }
        producer.shutdown();
    }
}
