'use strict';
// Sends messages with ali-ons, consumes them, and prints a JSON line with the messages acknowledged (sent), the different
// messages received (distinct) and the deliveries in all. Arguments: namesrv topic count ["send"]. With "send" nothing is
// consumed. Requests are signed with the keys in the environment variables COMPAT_ACCESS_KEY and COMPAT_SECRET_KEY, if
// they are set. An error ends the program with code 1.

const httpclient = require('urllib');
const { Consumer, Producer, Message } = require('ali-ons');

const SENDERS = 16;
const [namesrv, topic, countText, mode] = process.argv.slice(2);
const count = Number(countText);
// The client's log (it reports the unknown offset of a new group, for instance) must not mix with the result.
const logger = { info() {}, debug() {}, warn() {}, error: (...words) => console.error(...words) };
const keys = { accessKey: process.env.COMPAT_ACCESS_KEY, secretKey: process.env.COMPAT_SECRET_KEY };
const common = { httpclient, nameSrv: namesrv, logger, ...keys };

async function send() {
  const producer = new Producer({ ...common, producerGroup: topic + '_producer' });
  producer.on('error', error => console.error('producer', error.message));
  await producer.ready();
  let next = 0;
  let sent = 0;
  async function worker() {
    for (let number = next++; number < count; number = next++) {
      const answer = await producer.send(new Message(topic, 'TagA', 'message ' + number));
      if (answer && answer.sendStatus === 'SEND_OK') sent++;
    }
  }
  await Promise.all(Array.from({ length: SENDERS }, worker));
  await producer.close();
  return sent;
}

async function receive() {
  const consumer = new Consumer({ ...common, consumerGroup: topic + '_group', consumeFromWhere: 'CONSUME_FROM_FIRST_OFFSET' });
  consumer.on('error', error => console.error('consumer', error.message));
  const seen = new Set();
  let deliveries = 0;
  await new Promise(resolve => {
    setTimeout(resolve, 90000);
    consumer.subscribe(topic, '*', async message => {
      deliveries++;
      seen.add(message.body.toString());
      if (seen.size === count) resolve();
    });
  });
  await consumer.close();
  return { distinct: seen.size, deliveries };
}

(async () => {
  const sent = await send();
  const received = mode === 'send' ? { distinct: 0, deliveries: 0 } : await receive();
  console.log(JSON.stringify({ sent, ...received }));
  process.exit(0);
})().catch(error => {
  console.error(error);
  process.exit(1);
});
