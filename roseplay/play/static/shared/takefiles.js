/* A file from the user: chosen by a button, or dropped into a part of the page. */

/** Calls `take` with each file.
 * @param {HTMLInputElement} input the file input that it opens
 * @param {HTMLElement} zone where a file can be dropped; it has the class rp-over while one is held over it
 * @param {(file: File) => void} take */
export function takeFiles(button, input, zone, take) {
  const over = (yes) => zone.classList.toggle("rp-over", yes);
  button.onclick = () => input.click();
  input.onchange = () => {
    if (input.files.length) take(input.files[0]);
    input.value = "";
  };
  for (const name of ["dragenter", "dragover"]) zone.addEventListener(name, () => over(true));
  zone.addEventListener("dragleave", () => over(false));
  zone.addEventListener("drop", (event) => {
    over(false);
    if (event.dataTransfer.files.length) take(event.dataTransfer.files[0]);
  });
}

/** A file that is dropped elsewhere would otherwise replace the page. @param {DragEvent} event */
const ignoreFile = (event) => event.dataTransfer?.types.includes("Files") && event.preventDefault();
document.addEventListener("dragover", ignoreFile);
document.addEventListener("drop", ignoreFile);
