// The same agent as turns.py, with the official TypeScript client: one call a line, one JSON line
// an answer, the end with the first call that fails.
import { createInterface } from 'node:readline';
import Anthropic from '@anthropic-ai/sdk';

const model = process.argv[2];
const client = new Anthropic();

async function answered(prompt, streamed) {
  const asked = { model, max_tokens: 16, messages: [{ role: 'user', content: prompt }] };
  const message = streamed
    ? await client.messages.stream(asked).finalMessage()
    : await client.messages.create(asked);
  return message.content[0].text;
}

let turn = 0;
for await (const line of createInterface({ input: process.stdin })) {
  let report;
  try {
    report = { ok: true, text: await answered(line, turn % 2 === 1) };
  } catch (error) {
    report = { ok: false, text: `${error?.constructor?.name}: ${error?.message}` };
  }
  console.log(JSON.stringify(report));
  if (!report.ok) process.exit(1);
  turn += 1;
}
