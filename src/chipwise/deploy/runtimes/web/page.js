// Runs models for the server that it came from: fetches a command, carries it out, sends the answer, asks for the next.
// A command is one of the functions in `commands`; nothing that arrives is executed as code.
import { Tensor, clear, greedy, last, load, step } from "./decoder.js"; // of the engine that was asked for

const page = Array.from(crypto.getRandomValues(new Uint32Array(4)), (word) => word.toString(16)).join("");
const models = new Map();
const KINDS = { float32: Float32Array, int64: BigInt64Array, int32: Int32Array };
const show = (text) => { document.getElementById("state").textContent = text; };
const plain = (text) => String(text).replace(/[^ -~]+/g, " ").slice(0, 200);
const pause = (ms) => new Promise((done) => setTimeout(done, ms));

function clockStep() { // seconds between two readings of the clock that differ: the median of some
  const steps = [];
  while (steps.length < 15) {
    const start = performance.now();
    let now = start;
    while (now === start) now = performance.now();
    steps.push((now - start) / 1000);
  }
  return steps.sort((a, b) => a - b)[7];
}

function unpacked({ type, dims, data }) {
  const bytes = Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0));
  return new Tensor(type, new KINDS[type](bytes.buffer), dims);
}

function packed(tensor) {
  const bytes = new Uint8Array(tensor.data.buffer, tensor.data.byteOffset, tensor.data.byteLength);
  let text = "";
  for (let i = 0; i < bytes.length; i += 8192) text += String.fromCharCode(...bytes.subarray(i, i + 8192));
  return { type: tensor.type, dims: tensor.dims, data: btoa(text) };
}

const commands = {
  async open({ model, ...how }) {
    const file = await fetch(`model/${model}`);
    if (!file.ok) throw new Error(`the model could not be fetched: ${file.status}`);
    const loaded = await load(new Uint8Array(await file.arrayBuffer()), how);
    models.set(model, loaded);
    return { input: loaded.session.inputNames[0] };
  },

  // Runs the given tokens, or else the likeliest next ones, then `steps` more; each time is for one pass, or the mean of
  // `every` steps, without the time that an engine sets aside.
  async generate({ model: number, fresh, tokens, steps, every, wanted }) {
    const model = models.get(number), seconds = [];
    if (tokens) model.next = unpacked(tokens);
    const [batch] = model.next.dims;
    let next = model.next.data, logits;
    if (fresh) await clear(model);
    const ran = () => performance.now() - (model.aside ?? 0);
    let start = ran();
    for (let i = 0; i <= steps; i++) {
      logits = await step(model, next, batch);
      next = await greedy(logits);
      if (i % every === 0) {
        seconds.push((ran() - start) / 1000 / (i ? every : 1));
        start = ran();
      }
    }
    model.next = new Tensor("int64", next, [batch, 1]);
    return { seconds, output: wanted ? packed(await last(logits)) : null };
  },

  async nothing() { // shows what a command costs
    return {};
  },

  async run({ model: number, feeds, passes }) { // one pass over given inputs, `passes` times
    const model = models.get(number), seconds = [];
    const tensors = Object.fromEntries(Object.entries(feeds).map(([name, value]) => [name, unpacked(value)]));
    let output;
    for (let i = 0; i < passes; i++) {
      const start = performance.now();
      output = (await model.session.run(tensors))[model.session.outputNames[0]];
      seconds.push((performance.now() - start) / 1000);
    }
    return { seconds, output: packed(output) };
  },

  async memory() { // bytes of this page, its workers and their WebAssembly memory
    if (!performance.measureUserAgentSpecificMemory) return { bytes: null };
    return { bytes: (await performance.measureUserAgentSpecificMemory()).bytes };
  },

  async forget({ model }) {
    await models.get(model)?.session.release();
    models.delete(model);
    return {};
  },

  async finish({ text }) {
    show(text);
    return {};
  },
};

async function modelName() { // of a phone; browsers tell it only over https
  const told = await navigator.userAgentData?.getHighEntropyValues?.(["model"]).catch(() => null);
  return plain(told?.model ?? "");
}

async function main() {
  const adapter = await navigator.gpu?.requestAdapter().catch(() => null);
  const got = {
    threads: crossOriginIsolated ? navigator.hardwareConcurrency : 1,
    clock_s: clockStep(),
    isolated: crossOriginIsolated,
    webgpu: adapter ? plain(`${adapter.info?.vendor ?? ""} ${adapter.info?.architecture ?? ""}`).trim() || "yes" : "none",
    agent: plain(navigator.userAgent),
    name: plain(decodeURIComponent(location.hash.slice(1))) || await modelName(),
  };
  for (const [name, value] of Object.entries(got)) {
    const term = document.createElement("dt"), text = document.createElement("dd");
    term.textContent = name;
    text.textContent = value;
    document.getElementById("got").append(term, text);
  }
  let turn = { page, done: 0, got };
  addEventListener("pagehide", () => navigator.sendBeacon("turn", JSON.stringify({ page, done: 0, left: true })));
  let shown = -1000;
  for (let failed = 0; failed < 60;) {
    let command;
    try {
      const reply = await fetch("turn", { method: "POST", body: JSON.stringify(turn) });
      if (!reply.ok) throw new Error(await reply.text());
      command = await reply.json();
      failed = 0;
    } catch (error) { // a slow network, or the server has ended
      failed += 1;
      show(`No connection (${error.message}); trying again …`);
      await pause(500);
      continue;
    }
    if (command.end) return show(command.end);
    if (!command.number) continue;
    turn = { page, done: command.number };
    if (performance.now() > shown + 1000) { // each change of the page costs a little
      show(`Measuring … (step ${command.number})`);
      shown = performance.now();
    }
    try {
      turn.answer = await commands[command.do](command);
    } catch (error) {
      turn.error = plain(error?.message ?? error) || "unknown error";
    }
  }
  show("The program that measures has ended.");
}

main().catch((error) => show(`This browser cannot measure: ${error.message}`));
