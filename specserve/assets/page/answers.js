// Asking this server, with a key where it wants one, and reading answers as they come.

const KEY = "specserve-key";  // in the tab's session storage

/** What went wrong, in words for whoever sits in front of the page. */
class Problem extends Error {
  constructor(words, status) {
    super(words);
    this.status = status;
  }
}

/** Raises a Problem for everything but a good answer. */
async function ask(path, body, signal) {
  const headers = {};
  const key = sessionStorage.getItem(KEY);
  if (key) headers["Authorization"] = `Bearer ${key}`;
  if (body) headers["Content-Type"] = "application/json";
  let answer;
  try {
    const content = body && JSON.stringify(body);
    answer = await fetch(path, { method: body ? "POST" : "GET", headers, body: content, signal });
  } catch (error) {
    if (signal?.aborted && signal.reason?.name !== "TimeoutError") throw new Problem("stopped", 0);
    throw new Problem(`${location.host} does not answer. Is the service still running?`, 0);
  }
  if (!answer.ok) throw await refusal(answer);
  return answer;
}

async function refusal(answer) {
  let words = "";
  try {
    words = (await answer.json()).error.message;
  } catch (error) {
    words = "it does not say why";  // a proxy's answer, perhaps
  }
  if (answer.status === 401) showKeyForm();
  const wait = answer.headers.get("retry-after");
  const advice = wait ? ` Try again in ${wait} s.` : "";
  return new Problem(`The service refuses (${answer.status}): ${words.replace(/\.?$/, ".")}${advice}`, answer.status);
}

function showKeyForm() {
  if (!byId("key-form").hidden) return;
  byId("key-form").hidden = false;
  byId("key").focus();
}

byId("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem(KEY, byId("key").value.trim());
  byId("key").value = "";
  byId("key-form").hidden = true;
});

/** The events of a stream, in order. Raises a Problem where it ends before it is done. */
async function* streamed(path, body, signal) {
  const answer = await ask(path, body, signal);
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    let part;
    try {
      part = await reader.read();
    } catch (error) {
      throw new Problem(signal.aborted ? "stopped" : "the connection broke: the service has gone", 0);
    }
    if (part.done) throw new Problem("the stream ended early: the service has gone", 0);
    const events = (rest + part.value).split("\n\n");
    rest = events.pop();
    for (const event of events) {
      const data = event.replace(/^data: /, "");
      if (data === "[DONE]") return;
      const chunk = JSON.parse(data);
      if (chunk.error) throw new Problem(`The answer was cut off: ${chunk.error.message}.`, chunk.error.code);
      yield chunk;
    }
  }
}
