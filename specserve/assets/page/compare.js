// The same prompt with speculation and plainly, side by side, each token in the colour of its origin.

const ORIGINS = ["drafted", "bonus", "recovery", "plain"];
const PATHS = { true: "/v1/chat/completions", false: "/v1/completions" };
const QUESTION = "Write a Python class for a bank account with deposit, withdraw and balance, and use it.";
const BEGINNING = "def main():\n    ";

/** One of the two answers, while it comes and after. */
class Pane {
  constructor(id) {
    this.element = byId(id);
    this.clear();
  }

  clear() {
    this.text = "";  // the answer
    this.shown = "";  // what its tokens stand for, the one that ends it included
    this.spans = [];
    this.counts = Object.fromEntries(ORIGINS.map((name) => [name, 0]));
    this.hits = this.lookups = this.rounds = 0;
    this.finish = null;
    this.startMs = this.firstMs = this.lastMs = 0;
    this.decoder = new TextDecoder("utf-8", { ignoreBOM: true });
    this.part("text").replaceChildren();
    this.problem("");
    this.part("speed").textContent = "";
    this.part("counts").textContent = "";
    drawShares(this.part("shares"), this.counts);
  }

  part(name) {
    return this.element.querySelector(`.${name}`);
  }

  get tokens() {
    return this.spans.length;
  }

  get seconds() {
    return (this.lastMs - this.startMs) / 1000;
  }

  /** Tokens a second after the first, which waits for the prompt. */
  get rate() {
    const decoding = (this.lastMs - this.firstMs) / 1000;
    return decoding > 0 ? (this.tokens - 1) / decoding : null;
  }

  problem(words) {
    this.part("problem").textContent = words;
    this.part("problem").hidden = !words;
  }

  /** What one round brought. */
  add(choice) {
    this.text += choice.text ?? choice.delta?.content ?? "";
    this.finish = choice.finish_reason ?? this.finish;
    const tokens = choice.token_origins ?? [];
    if (!tokens.length) return;
    this.lastMs = performance.now();
    this.firstMs ||= this.lastMs;
    const hit = tokens[0].cache_hit;
    const round = written("span", hit === null ? "round" : hit ? "round prepared" : "round missed");
    for (const token of tokens) round.append(this.span(token, hit));
    this.rounds++;
    if (hit !== null) this.lookups++;
    if (hit) this.hits++;
    const text = this.part("text");
    const isAtEnd = text.scrollHeight - text.scrollTop - text.clientHeight < 40;
    text.append(round);
    if (isAtEnd) text.scrollTop = text.scrollHeight;
    this.tell();
  }

  span(token, hit) {
    const piece = this.decoder.decode(new Uint8Array(token.bytes), { stream: true });
    const span = written("span", `token ${token.origin}`, piece);
    const round = hit === null ? "" : hit ? ", in a prepared round" : ", in a round that missed";
    span.title = token.origin + round;
    this.shown += piece;
    this.counts[token.origin]++;
    this.spans.push(span);
    return span;
  }

  /** Figures of the run so far. */
  tell() {
    const speed = this.part("speed");
    speed.replaceChildren(written("b", "", figure(this.rate, 1)), " tokens/s · ");
    speed.append(`${this.tokens} tokens in ${this.seconds.toFixed(2)} s, the first after ${((this.firstMs - this.startMs) / 1000).toFixed(2)} s`);
    const parts = ORIGINS.filter((name) => this.counts[name]).map((name) => `${this.counts[name]} ${name}`);
    parts.push(`${this.rounds} rounds`);
    if (this.lookups) parts.push(`${percent(this.hits / this.lookups)} of ${this.lookups} prepared`);
    this.part("counts").textContent = parts.join(" · ");
    drawShares(this.part("shares"), this.counts);
  }

  /** The token that ends an answer is no part of its text. */
  end() {
    if (this.shown.length <= this.text.length || !this.shown.startsWith(this.text)) return;
    const last = this.spans.at(-1);
    if (last.textContent.length === this.shown.length - this.text.length) last.classList.add("ending");
  }

  async run(path, body, signal) {
    this.startMs = performance.now();
    this.part("speed").textContent = "waiting for the first token";
    try {
      for await (const chunk of streamed(path, body, signal)) {
        for (const choice of chunk.choices) this.add(choice);
      }
      this.end();
    } catch (error) {
      if (!this.tokens) this.part("speed").textContent = "";
      this.problem(error.message);
      throw error;
    }
  }
}

const speculative = new Pane("speculative"), plain = new Pane("plain");
let stopping = null;  // of what runs

function body(isChat) {
  const prompt = byId("prompt").value;
  return {
    ...(isChat ? { messages: [{ role: "user", content: prompt }] } : { prompt }),
    max_tokens: byId("max-tokens").valueAsNumber,
    temperature: byId("temperature").valueAsNumber,
    seed: byId("seed").valueAsNumber,
    stream: true,
    return_token_origins: true,
  };
}

async function runBoth() {
  const isChat = !byId("as-chat-label").hidden && byId("as-chat").checked;
  const asked = body(isChat), path = PATHS[isChat];
  byId("verdict").hidden = true;
  speculative.clear();
  plain.clear();
  stopping = new AbortController();
  setRunning(true);
  try {
    // A salt each: neither may find in the prefix cache what the other has computed.
    await speculative.run(path, { ...asked, cache_salt: salt() }, stopping.signal);
    await plain.run(path, { ...asked, cache_salt: salt(), spec: { mode: "off" } }, stopping.signal);
    tellVerdict(asked);
  } catch (error) {
    if (!(error instanceof Problem)) throw error;  // said in its pane
  } finally {
    setRunning(false);
  }
}

const salt = () => `page-${Date.now()}-${Math.random()}`;

function setRunning(isRunning) {
  byId("run").disabled = isRunning;
  byId("stop").hidden = !isRunning;
  document.body.dataset.running = isRunning;
}

function tellVerdict(asked) {
  const isEqual = speculative.text === plain.text && speculative.finish === plain.finish;
  const verdict = byId("verdict"), words = verdict.querySelector("p");
  verdict.dataset.equal = isEqual ? "yes" : "no";
  verdict.hidden = false;
  words.replaceChildren(written("strong", "", isEqual ? "The texts are equal." : `The texts differ from character ${parting(speculative.text, plain.text)} on.`));
  if (speculative.rate && plain.rate) {
    words.append(`${figure(speculative.rate / plain.rate)} times the tokens a second of plain decoding. `);
  }
  if (!isEqual) words.append(differing(asked));
  race();
}

function race() {
  drawRace(byId("race"), [["speculative", "with speculation", speculative.seconds], ["plain", "plain", plain.seconds]]);
}

const differing = (asked) => asked.temperature === 0
  ? "On a GPU, sums depend on the batch unless the service was launched with --deterministic."
  : "Speculation promises equal texts of one seed where arithmetic is deterministic, and equal distributions everywhere.";

function parting(one, other) {
  let place = 0;
  while (place < one.length && one[place] === other[place]) place++;
  return place;
}

byId("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  if (!byId("run").disabled) runBoth();
});
byId("prompt").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) byId("ask").requestSubmit();
});
byId("stop").addEventListener("click", () => stopping.abort());
addEventListener("resize", () => byId("verdict").hidden || race());

/** A first prompt that suits the model, unless somebody was faster. */
new MutationObserver((_, observer) => {
  if (!byId("prompt").value) byId("prompt").value = byId("as-chat-label").hidden ? BEGINNING : QUESTION;
  observer.disconnect();
}).observe(byId("about"), { childList: true });

look();
