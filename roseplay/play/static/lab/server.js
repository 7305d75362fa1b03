/* Requests of the Lab to the server. */

/**
 * Returns the server's answer for `path` below /ui/lab; throws an Error with the reason and the status if it refuses.
 * @param {string} path
 * @param {object} [body] to be posted
 */
export async function ask(path, body) {
  const post = { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) };
  let answer;
  try {
    answer = await fetch(`/ui/lab${path}`, body === undefined ? { cache: "no-store" } : post);
  } catch {
    throw new Error("The server does not answer. Is it still running?");
  }
  const found = await answer.json().catch(() => null);
  if (answer.ok && found !== null) return found;
  const said = sentence(found && found.detail) || `The server answered ${answer.status} to ${path || "the Lab"}.`;
  throw Object.assign(new Error(said), { status: answer.status });
}

const sentence = (detail) => (Array.isArray(detail) ? detail.map((one) => one.msg || String(one)).join("; ") : detail);
