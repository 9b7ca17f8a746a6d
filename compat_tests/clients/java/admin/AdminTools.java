import com.alibaba.fastjson.JSONObject;
import java.io.ByteArrayOutputStream;
import java.io.PrintStream;
import java.util.ArrayList;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.trace.TraceView;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.message.MessageRequestMode;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.remoting.protocol.route.BrokerData;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/** The operations of the official admin tools, with one started DefaultMQAdminExt per namesrv; needs the 5.x tools jar. */
final class AdminTools {
    private interface Action {
        Object run(DefaultMQAdminExt admin, JSONObject command) throws Exception;
    }

    private static final Map<String, DefaultMQAdminExt> STARTED = new ConcurrentHashMap<>();

    private AdminTools() {
    }

    static void register() {
        CommandLoop.OPERATIONS.put("mqadmin", AdminTools::mqadmin);
        add("admin.create_topic", (admin, command) -> {
            TopicConfig config = new TopicConfig(command.getString("topic"));
            config.setReadQueueNums(command.getIntValue("queues"));
            config.setWriteQueueNums(command.getIntValue("queues"));
            admin.createAndUpdateTopicConfig(broker(admin), config);
            return null;
        });
        add("admin.delete_topic", (admin, command) -> {
            admin.deleteTopicInBroker(Collections.singleton(broker(admin)), command.getString("topic"));
            admin.deleteTopicInNameServer(Collections.singleton(command.getString("namesrv")), command.getString("topic"));
            return null;
        });
        add("admin.cluster", (admin, command) -> admin.examineBrokerClusterInfo().getBrokerAddrTable().keySet());
        add("admin.topics", (admin, command) -> admin.fetchAllTopicList().getTopicList());
        add("admin.topic_status", AdminTools::topicStatus);
        add("admin.consume_stats", AdminTools::consumeStats);
        add("admin.connections", AdminTools::connections);
        add("admin.reset", (admin, command) -> admin.resetOffsetByTimestamp(command.getString("topic"),
            command.getString("group"), command.getLongValue("timestamp"), true).size());
        add("admin.mode", (admin, command) -> {
            admin.setMessageRequestMode(broker(admin), command.getString("topic"), command.getString("group"),
                MessageRequestMode.valueOf(command.getString("mode")), command.getIntValue("share"), 5000);
            return null;
        });
        add("admin.clone", (admin, command) -> {
            admin.cloneGroupOffset(command.getString("group"), command.getString("to"), command.getString("topic"), true);
            return null;
        });
        add("admin.trace", AdminTools::trace);
        add("admin.running", (admin, command) -> admin.getConsumerRunningInfo(command.getString("group"),
            command.getString("client"), false).getSubscriptionSet().size());
        add("admin.consume_directly", (admin, command) -> admin.consumeMessageDirectly(command.getString("group"),
            command.getString("client"), command.getString("topic"), command.getString("msg_id")).getConsumeResult().name());
    }

    /** Runs a command of the official command line tool and returns what it prints, errors included. */
    private static synchronized Object mqadmin(JSONObject command) throws Exception {
        PrintStream output = System.out;
        PrintStream errors = System.err;
        ByteArrayOutputStream printed = new ByteArrayOutputStream();
        PrintStream both = new PrintStream(printed, true, "UTF-8");
        System.setOut(both);
        System.setErr(both);
        ScheduledExecutorService waker = Executors.newSingleThreadScheduledExecutor();
        try {
            waker.scheduleAtFixedRate(AdminTools::wakeEventThreads, 100, 100, TimeUnit.MILLISECONDS);
            MQAdminStartup.main0(command.getJSONArray("arguments").toArray(new String[0]), Settings.signing(command));
        } finally {
            waker.shutdownNow();
            System.setOut(output);
            System.setErr(errors);
        }
        return printed.toString("UTF-8");
    }

    /** Interrupts the clients' threads that wait for network events, because a client that stops joins its own for up to 3 s. */
    private static void wakeEventThreads() {
        for (Thread thread : Thread.getAllStackTraces().keySet()) {
            if (thread.getName().startsWith("NettyEventExecutor")) {
                thread.interrupt();
            }
        }
    }

    /** Returns a message's traces as decoded by TraceView, which the official tool and dashboards use. */
    private static Object trace(DefaultMQAdminExt admin, JSONObject command) throws Exception {
        String id = command.getString("msg_id");
        List<Object> result = new ArrayList<>();
        for (MessageExt message : admin.queryMessage("RMQ_SYS_TRACE_TOPIC", id, 64, 0, Long.MAX_VALUE).getMessageList()) {
            for (TraceView view : TraceView.decodeFromTraceTransData(id, message)) {
                Map<String, Object> shown = new LinkedHashMap<>();
                shown.put("type", view.getMsgType());
                shown.put("status", view.getStatus());
                shown.put("topic", view.getTopic());
                shown.put("group", view.getGroupName());
                shown.put("tags", view.getTags());
                shown.put("keys", view.getKeys());
                result.add(shown);
            }
        }
        return result;
    }

    private static void add(String name, Action action) {
        CommandLoop.OPERATIONS.put(name, command -> action.run(admin(command.getString("namesrv")), command));
    }

    private static synchronized DefaultMQAdminExt admin(String namesrv) throws Exception {
        DefaultMQAdminExt admin = STARTED.get(namesrv);
        if (admin == null) {
            admin = new DefaultMQAdminExt(10000);
            admin.setNamesrvAddr(namesrv);
            admin.setInstanceName("compat-admin");
            admin.start();
            STARTED.put(namesrv, admin);
        }
        return admin;
    }

    private static String broker(DefaultMQAdminExt admin) throws Exception {
        BrokerData data = admin.examineBrokerClusterInfo().getBrokerAddrTable().values().iterator().next();
        return data.selectBrokerAddr();
    }

    private static Object topicStatus(DefaultMQAdminExt admin, JSONObject command) throws Exception {
        Map<String, Object> result = new LinkedHashMap<>();
        admin.examineTopicStats(command.getString("topic")).getOffsetTable().forEach((queue, offset) ->
            result.put(String.valueOf(queue.getQueueId()), new long[] {offset.getMinOffset(), offset.getMaxOffset()}));
        return result;
    }

    private static Object consumeStats(DefaultMQAdminExt admin, JSONObject command) throws Exception {
        Map<String, Object> result = new LinkedHashMap<>();
        admin.examineConsumeStats(command.getString("group")).getOffsetTable().forEach((queue, offset) ->
            result.put(queue.getTopic() + "/" + queue.getQueueId(), new long[] {offset.getConsumerOffset(), offset.getBrokerOffset()}));
        return result;
    }

    private static Object connections(DefaultMQAdminExt admin, JSONObject command) throws Exception {
        Map<String, Object> result = new LinkedHashMap<>();
        admin.examineConsumerConnectionInfo(command.getString("group")).getConnectionSet()
            .forEach(connection -> result.put(connection.getClientId(), connection.getLanguage().name()));
        return result;
    }
}
