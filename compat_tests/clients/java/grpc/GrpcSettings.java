import com.alibaba.fastjson.JSONObject;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.Map;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientConfigurationBuilder;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.StaticSessionCredentialsProvider;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.FilterExpressionType;
import org.apache.rocketmq.client.apis.message.Message;
import org.apache.rocketmq.client.apis.message.MessageBuilder;
import org.apache.rocketmq.client.apis.message.MessageView;

/** Builds the client's settings, filters and messages from JSON, and describes the messages it received. */
final class GrpcSettings {
    static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();

    private GrpcSettings() {
    }

    /** Returns the configuration of one client: plain connections unless the command says "tls". */
    static ClientConfiguration configuration(JSONObject command) {
        ClientConfigurationBuilder builder = ClientConfiguration.newBuilder()
            .setEndpoints(command.getString("endpoints"))
            .enableSsl(command.getBooleanValue("tls"))
            .setRequestTimeout(Duration.ofSeconds(10));
        String access = command.getString("access_key");
        if (access != null) {
            builder.setCredentialProvider(new StaticSessionCredentialsProvider(access, command.getString("secret_key")));
        }
        return builder.build();
    }

    /** Returns filters by topic from [{"topic", "tags" or "sql"}]. */
    static Map<String, FilterExpression> filters(JSONObject command) {
        Map<String, FilterExpression> filters = new HashMap<>();
        for (Object value : command.getJSONArray("subscriptions")) {
            JSONObject subscription = (JSONObject) value;
            filters.put(subscription.getString("topic"), subscription.containsKey("sql")
                ? new FilterExpression(subscription.getString("sql"), FilterExpressionType.SQL92)
                : new FilterExpression(subscription.getOrDefault("tags", "*").toString()));
        }
        return filters;
    }

    /** Returns the message that a JSON object describes; "size" stands for a body of that many bytes. */
    static Message message(JSONObject value) {
        byte[] body = value.containsKey("size") ? new byte[value.getIntValue("size")]
            : value.getString("body").getBytes(StandardCharsets.UTF_8);
        MessageBuilder builder = PROVIDER.newMessageBuilder().setTopic(value.getString("topic")).setBody(body);
        if (value.containsKey("tag")) {
            builder.setTag(value.getString("tag"));
        }
        if (value.containsKey("keys")) {
            builder.setKeys(value.getJSONArray("keys").toArray(new String[0]));
        }
        if (value.containsKey("group")) {
            builder.setMessageGroup(value.getString("group"));
        }
        if (value.containsKey("delay_ms")) {
            builder.setDeliveryTimestamp(System.currentTimeMillis() + value.getLongValue("delay_ms"));
        }
        if (value.containsKey("properties")) {
            value.getJSONObject("properties").forEach((name, text) -> builder.addProperty(name, text.toString()));
        }
        return builder.build();
    }

    static Map<String, Object> describe(MessageView message) {
        Map<String, Object> result = new LinkedHashMap<>();
        ByteBuffer body = message.getBody();
        byte[] bytes = new byte[body.remaining()];
        body.duplicate().get(bytes);
        result.put("id", message.getMessageId().toString());
        result.put("topic", message.getTopic());
        result.put("body", bytes.length > 1000 ? "" : new String(bytes, StandardCharsets.UTF_8));
        result.put("size", bytes.length);
        result.put("tag", message.getTag().orElse(null));
        result.put("keys", new ArrayList<>(message.getKeys()));
        result.put("group", message.getMessageGroup().orElse(null));
        result.put("deliver_at_ms", message.getDeliveryTimestamp().orElse(null));
        result.put("properties", message.getProperties());
        result.put("born_host", message.getBornHost());
        result.put("born_ms", message.getBornTimestamp());
        result.put("attempt", message.getDeliveryAttempt());
        result.put("received_ms", System.currentTimeMillis());
        return result;
    }
}
