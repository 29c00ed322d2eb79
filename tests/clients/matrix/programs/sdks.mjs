// An agent of a few lines on each TypeScript SDK: PROMPT plain|stream|tool NAME. Prints the answer.
const [prompt, mode, name] = process.argv.slice(2);
const { MATRIX_ANTHROPIC_URL, MATRIX_OPENAI_URL, MATRIX_TOKEN } = process.env;
const claude = 'claude-sonnet-4-6';
const gpt = 'gpt-4o';
const schema = { type: 'object', properties: {} };

async function anthropic() {
  const { default: Anthropic } = await import('@anthropic-ai/sdk');
  const client = new Anthropic(); // by its own variables
  const messages = [{ role: 'user', content: prompt }];
  const asked = { model: claude, max_tokens: 64, messages };
  if (mode === 'stream') return textOf(await client.messages.stream(asked).finalMessage());
  if (mode === 'tool') asked.tools = [{ name: 'look', input_schema: schema }];
  let answer = await client.messages.create(asked);
  if (answer.stop_reason === 'tool_use') {
    const result = { type: 'tool_result', tool_use_id: answer.content[0].id, content: 'seen' };
    messages.push({ role: 'assistant', content: answer.content });
    messages.push({ role: 'user', content: [result] });
    answer = await client.messages.create(asked);
  }
  return textOf(answer);
}

const textOf = (message) => message.content.map((block) => block.text ?? '').join('');

async function openai() {
  const { default: OpenAI } = await import('openai');
  const client = new OpenAI({ baseURL: MATRIX_OPENAI_URL, apiKey: MATRIX_TOKEN });
  const messages = [{ role: 'user', content: prompt }];
  const asked = { model: gpt, max_tokens: 64, messages };
  if (mode === 'stream') {
    let text = '';
    for await (const chunk of await client.chat.completions.create({ ...asked, stream: true })) {
      text += chunk.choices[0].delta.content ?? '';
    }
    return text;
  }
  if (mode === 'tool') asked.tools = [{ type: 'function', function: { name: 'look', parameters: schema } }];
  let { message } = (await client.chat.completions.create(asked)).choices[0];
  if (message.tool_calls) {
    messages.push(message, { role: 'tool', tool_call_id: message.tool_calls[0].id, content: 'seen' });
    ({ message } = (await client.chat.completions.create(asked)).choices[0]);
  }
  return message.content;
}

async function aiSdk(model) {
  const { generateText, jsonSchema, stepCountIs, streamText, tool } = await import('ai');
  if (mode === 'stream') {
    let failed;
    const answer = streamText({ model, prompt, onError: ({ error }) => { failed = error; } });
    const text = await answer.text.catch((error) => { throw failed ?? error; });
    if (failed) throw failed;
    return text;
  }
  const look = tool({ inputSchema: jsonSchema(schema), execute: async () => 'seen' });
  const more = mode === 'tool' ? { tools: { look }, stopWhen: stepCountIs(3) } : {};
  return (await generateText({ model, prompt, ...more })).text;
}

async function aiSdkAnthropic() {
  const { createAnthropic } = await import('@ai-sdk/anthropic');
  return aiSdk(createAnthropic({ baseURL: `${MATRIX_ANTHROPIC_URL}/v1`, authToken: MATRIX_TOKEN })(claude));
}

async function aiSdkOpenai() {
  const { createOpenAI } = await import('@ai-sdk/openai');
  return aiSdk(createOpenAI({ baseURL: MATRIX_OPENAI_URL, apiKey: MATRIX_TOKEN })(gpt));
}

console.log(await { anthropic, openai, aiSdkAnthropic, aiSdkOpenai }[name]());
