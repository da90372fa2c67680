// Functions that are called often: only the last call counts.

// `work(signal, …)` is aborted by its next call.
export function abortPrevious(work) {
  let controller = new AbortController();
  return async (...args) => {
    controller.abort();
    controller = new AbortController();
    return work(controller.signal, ...args);
  };
}

// `work(…)` is called once there was no other call for a while.
export function debounce(work, milliseconds = 250) {
  let timer;
  return (...args) => {
    clearTimeout(timer);
    timer = setTimeout(() => work(...args), milliseconds);
  };
}
