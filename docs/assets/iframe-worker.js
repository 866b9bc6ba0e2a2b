// Browsers start no worker on a page that was opened as a file. Search runs in one, so there it gets a hidden frame.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.appendChild(frame)
      this.inside = frame.contentWindow
      this.inside.postMessage = data => this.dispatchEvent(new MessageEvent("message", {data}))
      this.loaded = new Promise(resolve => {
        const script = this.inside.document.createElement("script")
        script.onload = resolve
        script.src = url
        this.inside.document.body.appendChild(script)
      })
    }

    postMessage(data) {
      this.loaded.then(() => this.inside.dispatchEvent(new MessageEvent("message", {data})))
    }
  }
}
