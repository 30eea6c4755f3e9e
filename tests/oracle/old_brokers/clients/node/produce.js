// produce.js CLIENT SERVER TOPIC CODEC COUNT: records numbered from 0, by kafka-node or KafkaJS with their default settings.
const [client, server, topic, codec, count] = process.argv.slice(2);
const PER_REQUEST = 25;
const FIRST_MS = 1600000000000;

// Times that rise and fall, so that none can be told from its neighbours.
const record = (n) => ({key: `key-${n % 50}`, value: `${client} ${codec} number ${n} ${'abcdefgh'.repeat(n % 9)}`,
  timestamp: FIRST_MS + n * 1000 + (n * 7919) % 5000 - 2500});
const requests = [];
for (let n = 0; n < count; n += PER_REQUEST)
  requests.push(Array.from({length: Math.min(PER_REQUEST, count - n)}, (_, i) => record(n + i)));

function kafkaNode() {
  const kafka = require('kafka-node');
  const producer = new kafka.Producer(new kafka.KafkaClient({kafkaHost: server}));
  const attributes = {none: 0, gzip: 1, snappy: 2}[codec];
  const send = () => {
    const records = requests.shift();
    if (!records) return producer.close(() => process.exit(0));
    const messages = records.map((r) => {
      const message = new kafka.KeyedMessage(r.key, r.value);
      message.timestamp = r.timestamp;
      return message;
    });
    producer.send([{topic, partition: 0, attributes, messages}], (error) => {
      if (error) throw error;
      send();
    });
  };
  producer.on('ready', send);
  producer.on('error', (error) => { throw error; });
}

async function kafkaJs() {
  const {Kafka, CompressionTypes, CompressionCodecs, logLevel} = require('kafkajs');
  CompressionCodecs[CompressionTypes.Snappy] = require('kafkajs-snappy');
  const producer = new Kafka({brokers: [server], logLevel: logLevel.ERROR}).producer();
  await producer.connect();
  const compression = {none: 0, gzip: 1, snappy: 2}[codec];
  for (const records of requests)
    await producer.send({topic, compression,
      messages: records.map((r) => ({...r, timestamp: String(r.timestamp), partition: 0}))});
  await producer.disconnect();
}

({'kafka-node': kafkaNode, kafkajs: kafkaJs})[client]();
