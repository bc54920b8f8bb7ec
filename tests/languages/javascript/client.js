// A client of Quorum in JavaScript: it declares a queue, publishes to it, consumes with a selector, and settles.
//
//   node client.js HOST:PORT PROTO_DIRECTORY GOOGLE_PROTO_DIRECTORY
//
// The .proto files are the complete contract; proto/quorum/v1/queue.proto explains each request and answer.
"use strict";
const crypto = require("crypto");
const fs = require("fs");
const path = require("path");
const grpc = require("@grpc/grpc-js");
const loader = require("@grpc/proto-loader");
const protobuf = require("protobufjs");

const [address, protos, googleProtos] = process.argv.slice(2);
const files = ["queue.proto", "admin.proto"].map((name) => path.join(protos, "quorum/v1", name));
const { quorum } = grpc.loadPackageDefinition(
  loader.loadSync(files, { includeDirs: [protos, googleProtos], keepCase: true, longs: Number, defaults: true, oneofs: true }));

// A batch is bytes inside a request: every member stores these bytes, and consumers receive them.
const root = new protobuf.Root();
root.resolvePath = (_, name) =>
  [protos, googleProtos].map((folder) => path.join(folder, name)).find(fs.existsSync) || name;
const MessageBatch = root.loadSync("quorum/v1/queue.proto", { keepCase: true }).lookupType("quorum.v1.MessageBatch");

function encode(messages) {
  let end = 0;
  return MessageBatch.encode(MessageBatch.create({
    count: messages.length,
    bodies: Buffer.concat(messages.map((each) => Buffer.from(each.body))),
    body_ends: messages.map((each) => (end += Buffer.byteLength(each.body))),
    properties: messages.map((each) => ({ application_properties: { colour: { text: each.colour } } })),
  })).finish();
}

function decode(bytes) {
  const batch = MessageBatch.decode(bytes);
  let start = 0;
  return batch.body_ends.map((end) => {
    const body = Buffer.from(batch.bodies.subarray(start, end)).toString();
    start = end;
    return body;
  });
}

async function main() {
  const credentials = grpc.credentials.createInsecure();
  const options = { "grpc.max_receive_message_length": 20 << 20 };
  const admin = new quorum.v1.Admin(address, credentials, options);
  const queue = "from-javascript";
  await new Promise((resolve, reject) =>
    admin.DeclareQueue({ queue, arguments: { "x-filter-enabled": { boolean: true } } },
      (error, answer) => (error ? reject(error) : resolve(answer))));

  const session = new quorum.v1.Queue(address, credentials, options).Session();
  const received = [];
  await new Promise((resolve, reject) => {
    session.on("error", reject);
    session.on("end", resolve);
    session.on("data", (response) => {
      const answer = response[response.response];
      switch (response.response) {
        case "opened":
          session.write({ attach: { request_id: 1, consumer_tag: "c", queue, selector: "colour = 'red'", credit_to: 100 } });
          session.write({ publish: { routing_key: queue, first_sequence: 1, lowest_unconfirmed: 1, batch: encode([
            { body: "an anvil", colour: "red" }, { body: "a feather", colour: "white" }, { body: "a rose", colour: "red" },
          ]) } });
          break;
        case "confirms":
          if (answer.rejected.length) reject(new Error(JSON.stringify(answer.rejected)));
          console.log("confirmed", answer.confirmed.map((range) => `${range.first}..${range.last}`).join(" "));
          break;
        case "delivery":
          received.push(...decode(answer.batch));
          session.write({ disposition: { request_id: 2, consumer_tag: "c", attach: answer.attach, outcome: "SETTLE",
            tags: [{ first: answer.first_tag, last: answer.first_tag + answer.count - 1 }] } });
          break;
        case "done":
          if (received.length === 2) { session.write({ close: {} }); session.end(); }
          break;
        case "failed":
          reject(new Error(answer.status.message));
      }
    });
    session.write({ open: { producer_id: crypto.randomBytes(16), epoch: 1 } });
  });
  console.log("received", received.join(", "));
}

main().then(() => process.exit(0), (error) => { console.error(error); process.exit(1); });
