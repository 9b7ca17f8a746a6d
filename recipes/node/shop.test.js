'use strict';
// RocketMQ in the tests of a Node program: a server process in memory, no Docker. ROCKETMQ_SERVER names another command
// than rmq-gateway, as JSON list.

const assert = require('node:assert');
const { spawn } = require('node:child_process');
const readline = require('node:readline');
const { after, before, test } = require('node:test');
const httpclient = require('urllib');
const { Consumer, Message, Producer } = require('ali-ons');

const command = JSON.parse(process.env.ROCKETMQ_SERVER || '["rmq-gateway"]');
const logger = { info() {}, debug() {}, warn() {}, error: (...words) => console.error(...words) };
let server;
let facts;

/** Starts a server on free ports and returns what its ready line says. */
function startServer() {
  const words = ['serve', '--memory', '--host', '127.0.0.1', '--port', '0', '--broker-port', '0', '--control', '0'];
  server = spawn(command[0], [...command.slice(1), ...words], { stdio: ['ignore', 'pipe', 'inherit'] });
  return new Promise((resolve, reject) => {
    server.once('error', reject);
    server.once('exit', code => reject(new Error(`the server ended with ${code}`)));
    readline.createInterface({ input: server.stdout }).once('line', line => resolve(JSON.parse(line)));
  });
}

/** Calls the control API; a body makes it a POST. */
async function control(operation, body) {
  const options = body ? { method: 'POST', body: JSON.stringify(body) } : {};
  const answer = await fetch(`http://${facts.control}/v1/${operation}`, options);
  assert.strictEqual(answer.status, 200, await answer.clone().text());
  return answer.json();
}

before(async () => { facts = await startServer(); });
after(() => {
  server.removeAllListeners('exit');
  server.kill();
  setTimeout(() => process.exit(), 1000).unref(); // the client keeps timers
});

test('a delayed order arrives when the time is moved', async () => {
  await control('topics', { topic: 'orders', queues: 1 });
  const common = { httpclient, nameSrv: facts.namesrv, logger };
  const producer = new Producer({ ...common, producerGroup: 'shop' });
  await producer.ready();
  const order = new Message('orders', 'TagA', 'coffee');
  order.delayTimeLevel = 18; // two hours
  assert.strictEqual((await producer.send(order)).sendStatus, 'SEND_OK');
  assert.deepStrictEqual((await control('messages?topic=orders')).messages, []);

  const arrived = new Promise(resolve => {
    const consumer = new Consumer({ ...common, consumerGroup: 'packing', consumeFromWhere: 'CONSUME_FROM_FIRST_OFFSET' });
    consumer.subscribe('orders', '*', async message => resolve(message.body.toString()));
  });
  await control('advance', { seconds: 7200 });
  assert.strictEqual(await arrived, 'coffee');
});

test('a slow broker is waited for', async () => {
  await control('faults', { action: 'latency', seconds: 0.2, request: 'send', times: 1 });
  const producer = new Producer({ httpclient, nameSrv: facts.namesrv, logger, producerGroup: 'shop-2' });
  await producer.ready();
  const started = Date.now();
  await producer.send(new Message('orders', 'TagA', 'tea'));
  assert.ok(Date.now() - started >= 195);
  const [fault] = (await control('faults')).faults;
  assert.strictEqual(fault.hits, 1);
});
