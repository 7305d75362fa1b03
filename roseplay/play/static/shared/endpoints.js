/* Calls of the server's named endpoints, the same that programs call. Each is an event of a component of Gradio's,
 * whose client sends it, and shows why where the server refuses it. */
import { tab } from "./tab.js";

/** @typedef {{values: Record<string, any>, done: (result: any) => void}} Call */

/** @type {(events: Record<string, (data: object) => void>) => void} */
let connected = () => {};
const connection = new Promise((resolve) => (connected = resolve));
/** What is under way, by endpoint. @type {Record<string, Call>} */
const calls = {};
/** The newest call, by endpoint. @type {Record<string, Promise<any>>} */
const lines = {};

/**
 * Call an endpoint, after the calls of it so far; resolves to what it returns, or undefined where it was refused.
 * @param {string} endpoint its name
 * @param {Record<string, any>} [values] of its parameters; the tab's id is added, and all others keep their defaults
 */
export function call(endpoint, values = {}) {
  const line = (lines[endpoint] ?? Promise.resolve()).then(async () => {
    const events = await connection;
    return new Promise((done) => {
      calls[endpoint] = { values: { tab, ...values }, done };
      events[endpoint]({});
    });
  });
  lines[endpoint] = line;
  return line;
}

/** What an endpoint is called with: for Gradio, which gives the defaults. */
export function argumentsOf(endpoint, parameters, ...defaults) {
  const { values } = calls[endpoint];
  return parameters.split(",").map((name, i) => values[name] ?? defaults[i]);
}

/** A call has ended, where it was refused without a result: for Gradio. */
export const ended = (endpoint, result) => calls[endpoint].done(result);

/** For a button: call an endpoint with the values of its inputs, under the names of parameters. */
export function press(endpoint, parameters, ...values) {
  const names = parameters ? parameters.split(",") : [];
  call(endpoint, Object.fromEntries(names.map((name, i) => [name, values[i]])));
}

/**
 * @param {HTMLElement} _element nothing to be seen
 * @param {Record<string, (data: object) => void>} events
 */
export const mount = (_element, events) => connected(events);
