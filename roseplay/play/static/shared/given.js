/* What the server has put into the page: see `page_head` in page.py. */

/**
 * @typedef {object} Given
 * @property {Record<string, string>} terms what the controls mean, by element id
 * @property {Record<string, string>} labTerms the same for the Lab's controls and words
 * @property {Record<string, (number | null)[]>} stops the values of sliders whose places are not even, by element id
 * @property {string | null} plotly the address of the plotly bundle
 * @property {{header: any, frame: any}} recordingShape the shape of a recording's lines
 * @property {string | null} recording the name of the recording that the server was started for
 */

const element = document.getElementById("rose-given");

/** @type {Given} */
export const given = {
  terms: {},
  labTerms: {},
  stops: {},
  plotly: null,
  recordingShape: null,
  recording: null,
  ...(element ? JSON.parse(element.textContent) : {}),
};
