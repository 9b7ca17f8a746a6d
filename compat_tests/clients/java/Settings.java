import com.alibaba.fastjson.JSONObject;
import com.alibaba.fastjson.util.TypeUtils;
import java.lang.reflect.Field;
import java.lang.reflect.Method;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.Map;
import org.apache.rocketmq.client.ClientConfig;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.RPCHook;
import org.apache.rocketmq.remoting.netty.TlsSystemConfig;

/** Applies JSON settings to clients by their setters, and converts messages and queues to JSON. */
final class Settings {
    private Settings() {
    }

    /** Sets the namesrv, and a timeout for its answers that suits a busy machine (the default is 3 s). */
    static void patient(ClientConfig client, JSONObject command) {
        client.setNamesrvAddr(command.getString("namesrv"));
        client.setMqClientApiTimeout(30000);
    }

    /** Returns a hook that signs requests if a command holds keys; by reflection, as its jar depends on the version. */
    static RPCHook signing(JSONObject command) throws Exception {
        String access = command.getString("access_key");
        if (access == null) {
            return null;
        }
        Class<?> credentials = Class.forName("org.apache.rocketmq.acl.common.SessionCredentials");
        Object given = credentials.getConstructor(String.class, String.class)
            .newInstance(access, command.getString("secret_key"));
        Class<?> hook = Class.forName("org.apache.rocketmq.acl.common.AclClientRPCHook");
        return (RPCHook) hook.getConstructor(credentials).newInstance(given);
    }

    /** Calls setX(value) for each {"x": value}, with the value converted to the type of the parameter. */
    static void apply(Object target, JSONObject settings) throws Exception {
        if (settings == null) {
            return;
        }
        for (Map.Entry<String, Object> entry : settings.entrySet()) {
            String name = "set" + Character.toUpperCase(entry.getKey().charAt(0)) + entry.getKey().substring(1);
            Method found = null;
            for (Method method : target.getClass().getMethods()) {
                if (method.getName().equals(name) && method.getParameterCount() == 1) {
                    found = method;
                }
            }
            if (found == null) {
                throw new IllegalArgumentException("no setter " + name);
            }
            found.invoke(target, TypeUtils.castToJavaBean(entry.getValue(), found.getParameterTypes()[0]));
        }
    }

    /** Sets fields of TlsSystemConfig, which clients read when they are built; its system properties are read once only. */
    static void applyTls(JSONObject fields) throws Exception {
        for (Map.Entry<String, Object> entry : fields.entrySet()) {
            Field field = TlsSystemConfig.class.getField(entry.getKey());
            field.set(null, TypeUtils.castToJavaBean(entry.getValue(), field.getType()));
        }
    }

    static Map<String, Object> describe(MessageQueue queue) {
        Map<String, Object> result = new LinkedHashMap<>();
        result.put("topic", queue.getTopic());
        result.put("broker", queue.getBrokerName());
        result.put("queue", queue.getQueueId());
        return result;
    }

    static MessageQueue queue(JSONObject value) {
        return new MessageQueue(value.getString("topic"), value.getString("broker"), value.getIntValue("queue"));
    }

    static Map<String, Object> describe(MessageExt message) {
        Map<String, Object> result = new LinkedHashMap<>();
        result.put("topic", message.getTopic());
        result.put("body", text(message));
        result.put("size", message.getBody() == null ? 0 : message.getBody().length);
        result.put("tags", message.getTags());
        result.put("keys", message.getKeys());
        result.put("flag", message.getFlag());
        result.put("queue", message.getQueueId());
        result.put("offset", message.getQueueOffset());
        result.put("msg_id", message.getMsgId());
        result.put("reconsume", message.getReconsumeTimes());
        // A copy, because the client modifies its own map while the answer is serialized.
        result.put("properties", new HashMap<>(message.getProperties()));
        result.put("born", message.getBornTimestamp());
        result.put("stored", message.getStoreTimestamp());
        result.put("born_host", String.valueOf(message.getBornHost()));
        result.put("store_host", String.valueOf(message.getStoreHost()));
        result.put("at", System.currentTimeMillis());
        return result;
    }

    /** Returns the body as text, or its checksum if it is larger than 1 KiB. */
    static String text(Message message) {
        byte[] body = message.getBody();
        if (body == null) {
            return "";
        }
        if (body.length > 1024) {
            java.util.zip.CRC32 sum = new java.util.zip.CRC32();
            sum.update(body);
            return "crc:" + sum.getValue();
        }
        return new String(body, java.nio.charset.StandardCharsets.UTF_8);
    }
}
