// Ends Azurite with the process that started it, also when that is killed: then standard input ends.
process.stdin.on("end", () => process.kill(process.pid, "SIGINT"));
process.stdin.on("error", () => process.kill(process.pid, "SIGINT"));
process.stdin.resume();
process.stdin.unref();
// The timer is for connections that a client keeps open: older Node.js waits for them before it ends.
process.once("SIGINT", () => setTimeout(() => process.exit(0), 2000).unref());
