// Keep the gateway on loopback: it would listen on every interface.
import net from "node:net";
const listen = net.Server.prototype.listen;
net.Server.prototype.listen = function (...words) {
  const done = words.find((word) => typeof word === "function");
  const asked = typeof words[0] === "object" ? words[0] : { port: words[0] };
  return listen.call(this, { ...asked, host: "127.0.0.1", backlog: 4096 }, done);
};
