/* The LLM provider of the bench: one thread, epoll, HTTP/1.1, loopback only.
 *
 * It answers 401 unless the real key arrives, so every 200 proves that the proxy put it in. What it
 * answers is chosen by a word in the request body, "bench:WORD":
 *
 *   json1k             a Messages answer of about 1 kB
 *   burst50 burst500 burst20000   an SSE answer of that many deltas, all at once
 *   paced50x20         an SSE answer of 50 deltas, 20 ms apart, each with the time it was sent
 *   sip                json1k, but the request is read at 25 MB/s (what does a body cost while sent?)
 *
 * usage: upstream PORT
 */
#include "common.h"

#define REAL_KEY "sk-ant-real-"
#define MARK "bench:"
#define WHEEL 8192   /* timer slots of 1 ms */
#define LOOK 4096    /* where the word usually stands: near the front or the end */
#define SIP_BYTES 250000
#define SIP_MS 10

enum doing { READING, PACING, SIPPING };

struct text { char *data; size_t size; };

struct conn {
    int fd;
    struct text in;       /* the request: size bytes are filled, of in_room */
    size_t in_room;
    struct text out;      /* what the socket did not take yet: out_sent of it are gone */
    size_t out_room, out_sent;
    size_t head, need;    /* bytes of the head, and of head and body; 0: not known yet */
    bool chunked, key_ok;
    enum doing doing;
    int left, gap_ms;     /* PACING: deltas to come */
    uint64_t due_ms;
    struct conn *next, **link;
};

static struct conn *wheel[WHEEL];
static uint64_t now_ms;
static int poller;
static struct text json1k, burst50, burst500, burst20000;

static const char SSE_HEAD[] =
    "HTTP/1.1 200 OK\r\nDate: Sun, 29 Nov 2026 12:00:00 GMT\r\n"
    "Content-Type: text/event-stream; charset=utf-8\r\nCache-Control: no-cache\r\n"
    "request-id: req_011CSHoEeqs5C35K2UUqR7Fy\r\n"
    "anthropic-ratelimit-requests-remaining: 3999\r\n"
    "anthropic-ratelimit-tokens-remaining: 399000\r\nTransfer-Encoding: chunked\r\n\r\n";
static const char MESSAGE_START[] =
    "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{"
    "\"id\":\"msg_01XFDUDYJgAACzvnptvVoYEL\",\"type\":\"message\",\"role\":\"assistant\","
    "\"model\":\"claude-sonnet-4-5\",\"content\":[],\"stop_reason\":null,\"stop_sequence\":null,"
    "\"usage\":{\"input_tokens\":234,\"cache_creation_input_tokens\":0,"
    "\"cache_read_input_tokens\":0,\"output_tokens\":1}}}\n\n";
static const char BLOCK_START[] =
    "event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":0,"
    "\"content_block\":{\"type\":\"text\",\"text\":\"\"}}\n\n";
static const char BLOCK_STOP[] =
    "event: content_block_stop\ndata: {\"type\":\"content_block_stop\",\"index\":0}\n\n";
static const char MESSAGE_STOP[] = "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n";
static const char NO_KEY[] =
    "HTTP/1.1 401 Unauthorized\r\nContent-Type: application/json\r\nContent-Length: 86\r\n\r\n"
    "{\"type\":\"error\",\"error\":{\"type\":\"authentication_error\",\"message\":\"invalid x-api-key\"}}";

/* --- timers ------------------------------------------------------------------------------- */

static void unschedule(struct conn *c)
{
    if (!c->link) return;
    *c->link = c->next;
    if (c->next) c->next->link = c->link;
    c->link = NULL;
    c->next = NULL;
}

static void schedule(struct conn *c, uint64_t due_ms)
{
    unschedule(c);
    struct conn **slot = &wheel[due_ms % WHEEL];
    c->due_ms = due_ms;
    c->next = *slot;
    if (*slot) (*slot)->link = &c->next;
    *slot = c;
    c->link = slot;
}

/* --- writing ------------------------------------------------------------------------------ */

static void watch(struct conn *c)
{
    bool writes = c->out.size > c->out_sent;
    struct epoll_event e = {.data.ptr = c};
    e.events = (c->doing == SIPPING ? 0 : EPOLLIN) | (writes ? EPOLLOUT : 0);
    epoll_ctl(poller, EPOLL_CTL_MOD, c->fd, &e);
}

/* Send now what the socket takes and keep the rest; false: the peer is gone. */
static bool put(struct conn *c, const char *data, size_t size)
{
    if (c->out.size == c->out_sent) {
        c->out.size = c->out_sent = 0;
        ssize_t sent = send(c->fd, data, size, MSG_NOSIGNAL);
        if (sent < 0 && errno != EAGAIN) return false;
        if (sent > 0) { data += sent; size -= sent; }
        if (!size) return true;
    }
    if (c->out.size + size > c->out_room) {
        c->out_room = (c->out.size + size) * 2;
        c->out.data = realloc(c->out.data, c->out_room);
    }
    memcpy(c->out.data + c->out.size, data, size);
    c->out.size += size;
    watch(c);
    return true;
}

static bool flush(struct conn *c)
{
    while (c->out_sent < c->out.size) {
        ssize_t sent = send(c->fd, c->out.data + c->out_sent, c->out.size - c->out_sent, MSG_NOSIGNAL);
        if (sent < 0) return errno == EAGAIN;
        c->out_sent += sent;
    }
    c->out.size = c->out_sent = 0;
    watch(c);
    return true;
}

static size_t chunk(char *to, const char *data, size_t size)
{
    int n = sprintf(to, "%zx\r\n", size);
    memcpy(to + n, data, size);
    memcpy(to + n + size, "\r\n", 2);
    return n + size + 2;
}

static size_t delta_chunk(char *to, uint64_t time_ns)
{
    char event[256];
    int n = sprintf(event,
        "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,"
        "\"delta\":{\"type\":\"text_delta\",\"text\":\"ts=%019llu\"}}\n\n",
        (unsigned long long)time_ns);
    return chunk(to, event, n);
}

/* The last events of a stream, and the last chunk. */
static size_t ending(char *to, int output_tokens)
{
    char event[512], *p = to;
    int n = sprintf(event,
        "event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{"
        "\"stop_reason\":\"end_turn\",\"stop_sequence\":null},\"usage\":{\"output_tokens\":%d}}\n\n",
        output_tokens);
    p += chunk(p, BLOCK_STOP, sizeof BLOCK_STOP - 1);
    p += chunk(p, event, n);
    p += chunk(p, MESSAGE_STOP, sizeof MESSAGE_STOP - 1);
    memcpy(p, "0\r\n\r\n", 5);
    return p + 5 - to;
}

static size_t beginning(char *to)
{
    char *p = to;
    memcpy(p, SSE_HEAD, sizeof SSE_HEAD - 1);
    p += sizeof SSE_HEAD - 1;
    p += chunk(p, MESSAGE_START, sizeof MESSAGE_START - 1);
    p += chunk(p, BLOCK_START, sizeof BLOCK_START - 1);
    return p - to;
}

static struct text make_burst(int deltas)
{
    struct text t = {malloc(8192 + deltas * 300), 0};
    t.size = beginning(t.data);
    for (int i = 0; i < deltas; i++) t.size += delta_chunk(t.data + t.size, 0);
    t.size += ending(t.data + t.size, deltas);
    return t;
}

static struct text make_json(int letters)
{
    char *words = malloc(letters + 1), *body = malloc(letters + 1024);
    for (int i = 0; i < letters; i++) words[i] = i % 8 == 7 ? ' ' : 'a';
    words[letters] = 0;
    int size = sprintf(body,
        "{\"id\":\"msg_01XFDUDYJgAACzvnptvVoYEL\",\"type\":\"message\",\"role\":\"assistant\","
        "\"model\":\"claude-sonnet-4-5\",\"content\":[{\"type\":\"text\",\"text\":\"%s\"}],"
        "\"stop_reason\":\"end_turn\",\"stop_sequence\":null,\"usage\":{\"input_tokens\":234,"
        "\"cache_creation_input_tokens\":0,\"cache_read_input_tokens\":0,\"output_tokens\":64}}",
        words);
    struct text t = {malloc(size + 1024), 0};
    t.size = sprintf(t.data,
        "HTTP/1.1 200 OK\r\nDate: Sun, 29 Nov 2026 12:00:00 GMT\r\n"
        "Content-Type: application/json\r\nrequest-id: req_011CSHoEeqs5C35K2UUqR7Fy\r\n"
        "anthropic-ratelimit-requests-remaining: 3999\r\n"
        "anthropic-ratelimit-tokens-remaining: 399000\r\nContent-Length: %d\r\n\r\n%s",
        size, body);
    free(words);
    free(body);
    return t;
}

/* --- answering ---------------------------------------------------------------------------- */

static const char *word_of(const char *body, size_t size)
{
    size_t mark = sizeof MARK - 1, look = size < LOOK ? size : LOOK;
    const char *found = memmem(body, look, MARK, mark);
    if (!found && size > LOOK) found = memmem(body + size - LOOK, LOOK, MARK, mark);
    if (!found && size > LOOK) found = memmem(body, size, MARK, mark);
    return found ? found + mark : "json1k";
}

static bool begins(const char *text, const char *with) { return !strncmp(text, with, strlen(with)); }

static bool answer(struct conn *c)
{
    if (!c->key_ok) return put(c, NO_KEY, sizeof NO_KEY - 1);
    const char *word = word_of(c->in.data + c->head, c->need - c->head);
    if (begins(word, "burst20000")) return put(c, burst20000.data, burst20000.size);
    if (begins(word, "burst500")) return put(c, burst500.data, burst500.size);
    if (begins(word, "burst50")) return put(c, burst50.data, burst50.size);
    if (begins(word, "paced")) {
        char *end, start[4096];
        c->doing = PACING;
        c->left = strtol(word + 5, &end, 10);
        c->gap_ms = atoi(end + 1);
        schedule(c, now_ms + c->gap_ms);
        return put(c, start, beginning(start));
    }
    return put(c, json1k.data, json1k.size);
}

static void read_head(struct conn *c, char *end)
{
    size_t length = 0;
    c->head = end + 4 - c->in.data;
    c->chunked = c->key_ok = false;
    for (char *line = c->in.data; line < end;) {
        char *stop = memmem(line, end + 2 - line, "\r\n", 2);
        if (!strncasecmp(line, "content-length:", 15)) length = strtoul(line + 15, NULL, 10);
        else if (!strncasecmp(line, "transfer-encoding:", 18)) c->chunked = true;
        else if (!strncasecmp(line, "expect:", 7)) put(c, "HTTP/1.1 100 Continue\r\n\r\n", 25);
        else if (!strncasecmp(line, "x-api-key:", 10)) {
            char *value = line + 10;
            while (*value == ' ') value++;
            c->key_ok = begins(value, REAL_KEY);
        }
        line = stop + 2;
    }
    c->need = c->head + length;
}

static bool wants_sipping(struct conn *c)
{
    size_t size = c->in.size - c->head;
    return size > 64 && begins(word_of(c->in.data + c->head, size < LOOK ? size : LOOK), "sip");
}

/* Answer every whole request that lies in the buffer; false: the peer is gone. */
static bool serve(struct conn *c)
{
    while (c->doing == READING && c->in.size) {
        if (!c->need) {
            char *end = memmem(c->in.data, c->in.size, "\r\n\r\n", 4);
            if (!end) return true;
            read_head(c, end);
        }
        if (c->chunked) { /* good enough here: JSON bodies hold no raw line ends */
            if (c->in.size < c->head + 5 || memcmp(c->in.data + c->in.size - 5, "0\r\n\r\n", 5))
                return true;
            c->need = c->in.size;
        }
        if (c->in.size < c->need) {
            if (wants_sipping(c)) {
                c->doing = SIPPING;
                schedule(c, now_ms + SIP_MS);
                watch(c);
            }
            return true;
        }
        if (!answer(c)) return false;
        size_t rest = c->in.size - c->need;
        if (rest) memmove(c->in.data, c->in.data + c->need, rest);
        c->in.size = rest;
        c->need = 0;
    }
    return true;
}

/* Read what is there, at most `most` bytes; false: the peer is gone. */
static bool take(struct conn *c, size_t most)
{
    while (most) {
        if (c->in_room - c->in.size < 16384) {
            c->in_room = c->in_room ? c->in_room * 2 : 32768;
            c->in.data = realloc(c->in.data, c->in_room);
        }
        size_t room = c->in_room - c->in.size;
        if (room > most) room = most;
        ssize_t got = recv(c->fd, c->in.data + c->in.size, room, 0);
        if (got == 0) return false;
        if (got < 0) return errno == EAGAIN;
        c->in.size += got;
        most -= got;
        if ((size_t)got < room) return true;
    }
    return true;
}

/* A timer of the connection has come; false: the peer is gone. */
static bool fire(struct conn *c)
{
    char data[4096];
    if (c->doing == SIPPING) {
        if (!take(c, SIP_BYTES)) return false;
        if (c->in.size < c->need) { schedule(c, now_ms + SIP_MS); return true; }
        c->doing = READING;
        watch(c);
        return serve(c);
    }
    if (c->left-- > 0) {
        uint64_t due = c->due_ms + c->gap_ms;
        schedule(c, due > now_ms ? due : now_ms + 1);
        return put(c, data, delta_chunk(data, nanoseconds()));
    }
    c->doing = READING;
    return put(c, data, ending(data, 99));
}

/* --- the loop ----------------------------------------------------------------------------- */

static void drop(struct conn *c)
{
    unschedule(c);
    close(c->fd);
    free(c->in.data);
    free(c->out.data);
    free(c);
}

static void accept_all(int listener)
{
    int fd;
    while ((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK)) >= 0) {
        without_delay(fd);
        struct conn *c = calloc(1, sizeof *c);
        c->fd = fd;
        struct epoll_event e = {.events = EPOLLIN, .data.ptr = c};
        epoll_ctl(poller, EPOLL_CTL_ADD, fd, &e);
    }
}

static int listen_on(int port)
{
    int one = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    struct sockaddr_in at = loopback(port);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(fd, (void *)&at, sizeof at) || listen(fd, 4096)) { perror("upstream"); exit(1); }
    return fd;
}

int main(int count, char **words)
{
    if (count != 2) { fputs("usage: upstream PORT\n", stderr); return 2; }
    signal(SIGPIPE, SIG_IGN);
    json1k = make_json(700);
    burst50 = make_burst(50);
    burst500 = make_burst(500);
    burst20000 = make_burst(20000);
    poller = epoll_create1(0);
    int listener = listen_on(atoi(words[1]));
    struct epoll_event e = {.events = EPOLLIN, .data.ptr = NULL}, got[512];
    epoll_ctl(poller, EPOLL_CTL_ADD, listener, &e);
    for (uint64_t start = nanoseconds();;) {
        int n = epoll_wait(poller, got, 512, 1);
        for (int i = 0; i < n; i++) {
            struct conn *c = got[i].data.ptr;
            if (!c) { accept_all(listener); continue; }
            bool alive = true;
            if (got[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) {
                /* A request that may be sipped is looked at before much of it is taken. */
                alive = take(c, c->in.size ? SIZE_MAX : 65536) && serve(c);
            }
            if (alive && (got[i].events & EPOLLOUT)) alive = flush(c);
            if (!alive) drop(c);
        }
        for (uint64_t t = (nanoseconds() - start) / 1000000; now_ms < t;) {
            now_ms++;
            for (struct conn *c = wheel[now_ms % WHEEL], *next; c; c = next) {
                next = c->next;
                if (c->due_ms > now_ms) continue;
                unschedule(c);
                if (!fire(c)) drop(c);
            }
        }
    }
}
