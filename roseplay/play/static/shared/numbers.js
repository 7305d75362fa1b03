/* Figures of samples, and axes with round steps. */

const NICE = [1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10];

/** The q-quantile of a sorted array, interpolated between neighbours; NaN for an empty one.
 * @param {ArrayLike<number>} sorted
 * @param {number} q from 0 to 1 */
export function quantile(sorted, q) {
  if (!sorted.length) return NaN;
  const at = (sorted.length - 1) * q, low = Math.floor(at), high = Math.min(low + 1, sorted.length - 1);
  return sorted[low] + (sorted[high] - sorted[low]) * (at - low);
}

/** The first whole number from `low` to below `high` for which `test` holds; `high` if there is none. If it holds for a
 * number, it must hold for all after it.
 * @param {(i: number) => boolean} test */
export function firstWhere(low, high, test) {
  while (low < high) {
    const middle = Math.floor((low + high) / 2);
    if (test(middle)) high = middle;
    else low = middle + 1;
  }
  return low;
}

/** The median of numbers in any order; NaN if there are none. */
export const median = (values) => quantile(Float64Array.from(values).sort(), 0.5);

/** An axis from 0 that covers `most` with `parts` equal parts of a round size.
 * @returns {{max: number, step: number}} */
export function niceAxis(most, parts) {
  const least = Math.max(most, 1e-6) / parts, power = 10 ** Math.floor(Math.log10(least));
  const step = power * NICE.find((n) => n * power >= least * 0.9999);
  return { max: step * parts, step };
}
