// Sends messages by Amazon's SDK and consumes them by sqs-consumer; prints what was handled as JSON.
import {
  CreateQueueCommand, GetQueueAttributesCommand, SendMessageBatchCommand, SendMessageCommand, SQSClient,
} from "@aws-sdk/client-sqs";
import { Consumer } from "sqs-consumer";

const sqs = new SQSClient({
  endpoint: process.argv[2],
  region: "us-east-1",
  credentials: { accessKeyId: "any", secretAccessKey: "thing" },
});
const { QueueUrl } = await sqs.send(new CreateQueueCommand({ QueueName: "node", Attributes: { VisibilityTimeout: "30" } }));
const Entries = [...Array(10).keys()].map((n) => ({ Id: `${n}`, MessageBody: `message ${n}` }));
await sqs.send(new SendMessageBatchCommand({ QueueUrl, Entries }));
const color = { color: { DataType: "String", StringValue: "größe" } };
await sqs.send(new SendMessageCommand({ QueueUrl, MessageBody: "last", MessageAttributes: color }));

const handled = [], failures = [];
const consumer = Consumer.create({
  queueUrl: QueueUrl,
  sqs,
  batchSize: 10,
  waitTimeSeconds: 1,
  messageAttributeNames: ["All"],
  visibilityTimeout: 30,
  terminateVisibilityTimeout: true,
  handleMessage: async (message) => {
    if (message.Body === "message 3" && !failures.length) {
      failures.push(message.Body);
      throw new Error("once more");
    }
    handled.push([message.Body, message.MessageAttributes?.color?.StringValue ?? null]);
    if (handled.length === 11) consumer.stop();
    return message;
  },
});
consumer.on("error", (error) => { console.error(error); process.exit(1); });
consumer.on("processing_error", () => {});
await new Promise((resolve) => { consumer.on("stopped", resolve); consumer.start(); });
let left = 1;
for (let tries = 0; left && tries < 300; tries++) {
  const AttributeNames = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"];
  const { Attributes } = await sqs.send(new GetQueueAttributesCommand({ QueueUrl, AttributeNames }));
  left = Object.values(Attributes).reduce((sum, text) => sum + Number(text), 0);
  if (left) await new Promise((resolve) => setTimeout(resolve, 100));
}
console.log(JSON.stringify({ handled, failures, left }));
process.exit(0);
