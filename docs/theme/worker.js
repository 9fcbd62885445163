// Pages that are opened from disk may not start a worker. There the script that searches runs in a hidden frame instead.
if (location.protocol === "file:") {
  window.Worker = class {
    constructor(url) {
      this.waiting = [];
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.append(this.frame);
      const inside = this.frame.contentWindow;
      inside.postMessage = (data) => setTimeout(() => this.onmessage?.({ data }));
      const script = inside.document.createElement("script");
      script.src = url;
      script.onload = () => {
        this.postMessage = (data) => setTimeout(() => inside.onmessage({ data }));
        this.waiting.forEach((data) => this.postMessage(data));
      };
      script.onerror = (event) => this.onerror?.(event);
      inside.document.body.append(script);
    }
    postMessage(data) {
      this.waiting.push(data);
    }
    terminate() {
      this.frame.remove();
    }
  };
}
