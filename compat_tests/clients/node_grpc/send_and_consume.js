// Sends messages over gRPC with rocketmq-client-nodejs, then consumes them with a push consumer.
//
// Arguments: gRPC address, topic, number of messages. Prints {"sent", "distinct", "deliveries"} as its last line. An
// error ends the program with code 1.

const { Producer, PushConsumer, FilterExpression, ConsumeResult } = require('rocketmq-client-nodejs');

const SENDERS = 16;
const RECEIVE_TIMEOUT_MS = 90000;
const [endpoints, topic, countText] = process.argv.slice(2);
const count = Number(countText);
// The client's log must not mix with the result.
const logger = { info() {}, debug() {}, warn() {}, error: (...words) => console.error(...words) };
const common = { endpoints, namespace: '', logger };

async function send() {
  const producer = new Producer({ ...common, topic });
  await producer.startup();
  let next = 0;
  let sent = 0;
  async function worker() {
    for (let number = next++; number < count; number = next++) {
      const receipt = await producer.send({ topic, tag: 'TagA', body: Buffer.from('message ' + number) });
      if (receipt.messageId) sent++;
    }
  }
  await Promise.all(Array.from({ length: SENDERS }, worker));
  await producer.shutdown();
  return sent;
}

async function receive() {
  const seen = new Set();
  let deliveries = 0;
  await new Promise((resolve, reject) => {
    setTimeout(resolve, RECEIVE_TIMEOUT_MS);
    const consumer = new PushConsumer({
      ...common,
      consumerGroup: topic + '_group',
      subscriptions: new Map([[topic, new FilterExpression('*')]]),
      messageListener: {
        async consume(message) {
          deliveries++;
          seen.add(message.body.toString());
          if (seen.size === count) resolve();
          return ConsumeResult.SUCCESS;
        },
      },
    });
    consumer.startup().catch(reject);
  });
  return { distinct: seen.size, deliveries };
}

(async () => {
  const sent = await send();
  const received = await receive();
  console.log(JSON.stringify({ sent, ...received }));
  process.exit(0);
})().catch(error => {
  console.error(error);
  process.exit(1);
});
