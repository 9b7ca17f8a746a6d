import com.alibaba.fastjson.JSONObject;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** The operations of lite pull consumers and of the old pull consumers, which commands refer to by name. */
@SuppressWarnings("deprecation")
final class PullConsumers {
    private static final Map<String, DefaultLitePullConsumer> LITE = new ConcurrentHashMap<>();
    private static final Map<String, DefaultMQPullConsumer> OLD = new ConcurrentHashMap<>();

    private PullConsumers() {
    }

    static void register() {
        CommandLoop.OPERATIONS.put("lite.start", PullConsumers::startLite);
        CommandLoop.OPERATIONS.put("lite.stop", command -> {
            LITE.remove(command.getString("name")).shutdown();
            return null;
        });
        CommandLoop.OPERATIONS.put("lite.poll", PullConsumers::poll);
        CommandLoop.OPERATIONS.put("lite.commit", command -> {
            lite(command).commitSync();
            return null;
        });
        CommandLoop.OPERATIONS.put("lite.committed", command -> lite(command).committed(Settings.queue(command.getJSONObject("queue"))));
        CommandLoop.OPERATIONS.put("lite.seek", PullConsumers::seek);
        CommandLoop.OPERATIONS.put("pull.start", PullConsumers::startOld);
        CommandLoop.OPERATIONS.put("pull.stop", command -> {
            OLD.remove(command.getString("name")).shutdown();
            return null;
        });
        CommandLoop.OPERATIONS.put("pull", PullConsumers::pull);
        CommandLoop.OPERATIONS.put("pull.offsets", PullConsumers::offsets);
        CommandLoop.OPERATIONS.put("pull.commit", PullConsumers::commit);
    }

    private static DefaultLitePullConsumer lite(JSONObject command) {
        return LITE.get(command.getString("name"));
    }

    private static DefaultMQPullConsumer old(JSONObject command) {
        return OLD.get(command.getString("name"));
    }

    private static Object startLite(JSONObject command) throws Exception {
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(command.getString("group"), Settings.signing(command));
        Settings.patient(consumer, command);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        Settings.apply(consumer, command.getJSONObject("settings"));
        if (!command.containsKey("assign")) {
            consumer.subscribe(command.getString("topic"), command.getOrDefault("tags", "*").toString());
        }
        consumer.start();
        if (command.containsKey("assign")) {
            List<MessageQueue> queues = new ArrayList<>();
            command.getJSONArray("assign").forEach(value -> queues.add(Settings.queue((JSONObject) value)));
            consumer.assign(queues);
        }
        LITE.put(command.getString("name"), consumer);
        return null;
    }

    /** Polls until count messages have come or the time is up. */
    private static Object poll(JSONObject command) {
        long deadline = System.currentTimeMillis() + command.getLongValue("timeout");
        List<Object> result = new ArrayList<>();
        while (result.size() < command.getIntValue("count") && System.currentTimeMillis() < deadline) {
            for (MessageExt message : lite(command).poll(200)) {
                result.add(Settings.describe(message));
            }
        }
        return result;
    }

    private static Object seek(JSONObject command) throws Exception {
        MessageQueue queue = Settings.queue(command.getJSONObject("queue"));
        if (command.containsKey("offset")) {
            lite(command).seek(queue, command.getLongValue("offset"));
        } else if (command.getBooleanValue("end")) {
            lite(command).seekToEnd(queue);
        } else {
            lite(command).seekToBegin(queue);
        }
        return null;
    }

    private static Object startOld(JSONObject command) throws Exception {
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer(command.getString("group"), Settings.signing(command));
        Settings.patient(consumer, command);
        Settings.apply(consumer, command.getJSONObject("settings"));
        consumer.start();
        OLD.put(command.getString("name"), consumer);
        return null;
    }

    private static Object pull(JSONObject command) throws Exception {
        MessageQueue queue = Settings.queue(command.getJSONObject("queue"));
        String tags = command.getOrDefault("tags", "*").toString();
        long offset = command.getLongValue("offset");
        int most = command.containsKey("count") ? command.getIntValue("count") : 32;
        PullResult answer = command.getBooleanValue("block")
            ? old(command).pullBlockIfNotFound(queue, tags, offset, most) : old(command).pull(queue, tags, offset, most);
        Map<String, Object> result = new LinkedHashMap<>();
        result.put("status", answer.getPullStatus().name());
        result.put("next", answer.getNextBeginOffset());
        result.put("min", answer.getMinOffset());
        result.put("max", answer.getMaxOffset());
        List<Object> messages = new ArrayList<>();
        if (answer.getMsgFoundList() != null) {
            answer.getMsgFoundList().forEach(message -> messages.add(Settings.describe(message)));
        }
        result.put("messages", messages);
        return result;
    }

    private static Object offsets(JSONObject command) throws Exception {
        MessageQueue queue = Settings.queue(command.getJSONObject("queue"));
        Map<String, Object> result = new LinkedHashMap<>();
        result.put("min", old(command).minOffset(queue));
        result.put("max", old(command).maxOffset(queue));
        result.put("earliest_ms", old(command).earliestMsgStoreTime(queue));
        result.put("search", old(command).searchOffset(queue, command.getLongValue("timestamp")));
        result.put("committed", old(command).fetchConsumeOffset(queue, true));
        return result;
    }

    private static Object commit(JSONObject command) throws Exception {
        MessageQueue queue = Settings.queue(command.getJSONObject("queue"));
        old(command).getDefaultMQPullConsumerImpl().updateConsumeOffset(queue, command.getLongValue("offset"));
        old(command).getDefaultMQPullConsumerImpl().getOffsetStore().persist(queue);
        old(command).getDefaultMQPullConsumerImpl().getOffsetStore()
            .updateConsumeOffsetToBroker(queue, command.getLongValue("offset"), false);
        return null;
    }
}
