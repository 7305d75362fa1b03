/* Asks the server for what is below /ui: data of the page, and actions. */
import { tell } from "./message.js";

const NO_ANSWER = "the server does not answer";

/** @typedef {object} How
 * @property {Record<string, string | number>} [query]
 * @property {object | File} [body] makes it a POST; an object is sent as JSON
 * @property {boolean} [post] whether it is a POST without a body, too
 * @property {number} [ms] how long to wait for the answer
 * @property {boolean} [text] whether the answer is text, not JSON */

/** A line of words as a sentence: with a capital unless it begins with a name, and a full stop unless it has a mark. */
export function sentence(line) {
  const first = /^[a-z]+_/.test(line) ? line[0] : line[0].toUpperCase();
  return `${first}${line.slice(1)}${/[.?!]$/.test(line) ? "" : "."}`;
}

/** Returns the server's answer; throws an Error with its reason as a sentence and its `status` if it refuses, or with
 * status 0 if there is no answer that can be read.
 * @param {string} path below /ui
 * @param {How} [how] */
export async function ask(path, { query, body, post = body !== undefined, ms, text = false } = {}) {
  const address = `/ui${path}${query ? `?${new URLSearchParams(/** @type {any} */ (query))}` : ""}`;
  const json = body !== undefined && !(body instanceof Blob);
  const answer = await fetch(address, {
    method: post ? "POST" : "GET",
    cache: "no-store",
    ...(ms ? { signal: AbortSignal.timeout(ms) } : {}),
    ...(json ? { headers: { "Content-Type": "application/json" } } : {}),
    body: json ? JSON.stringify(body) : /** @type {Blob | undefined} */ (body),
  }).catch(() => null);
  const content = await (text && answer?.ok ? answer.text() : answer?.json())?.catch(() => null) ?? null;
  if (answer?.ok && content !== null) return content;
  const status = answer && !answer.ok ? answer.status : 0;
  const silence = body instanceof Blob ? "the file can no longer be read, or the server does not answer" : NO_ANSWER;
  const reason = status ? content?.detail || `the server answered ${status}` : silence;
  throw Object.assign(new Error(sentence(String(reason))), { status });
}

/** The newest call, by endpoint. @type {Record<string, Promise<any>>} */
const lines = {};

/** Call a named endpoint, as programs do, after its earlier calls; resolves to its result, or to undefined, with a
 * message, if it was refused.
 * @param {string} endpoint its name
 * @param {Record<string, any>} values of its parameters; all others keep their defaults */
export function call(endpoint, values) {
  const earlier = lines[endpoint] ?? Promise.resolve();
  const line = earlier.then(() => ask(`/call/${endpoint}`, { body: values }))
    .then(({ result }) => result, ({ message }) => tell(message));
  lines[endpoint] = line;
  return line;
}
