// The stream of updates, for as long as the page is open. A connection that breaks is made again by the browser; one that
// was refused is not, and is made again from here.

const SILENCE_MS = 6000; // The server looks about once a second; when that takes long, it says every 15 s that it is there.
const AGAIN_MS = 2000;

/**
 * Follow the updates: `onUpdate(text)` for each, `onConnection(state, heard)` when the connection changes, with
 * "connecting", "live" or "lost", and every second while it is lost.
 */
export function follow(onUpdate, onConnection) {
  let heard = 0;
  let state = "connecting";
  const turn = (next) => {
    state = next;
    onConnection(state, heard);
  };
  const open = () => {
    const source = new EventSource("/api/events");
    source.onmessage = (event) => {
      heard = Date.now();
      if (state !== "live") turn("live");
      onUpdate(event.data);
    };
    source.onerror = () => {
      turn(heard ? "lost" : "connecting");
      if (source.readyState === EventSource.CLOSED) setTimeout(open, AGAIN_MS);
    };
  };
  open();
  setInterval(() => {
    if (state === "live" && Date.now() - heard > SILENCE_MS) turn("lost");
    else if (state === "lost") onConnection(state, heard);
  }, 1000);
}
