/* The load generator of the bench: one thread, epoll, HTTP/1.1 keep-alive, one kind of request.
 *
 * Closed loop, or open loop with -r, where latency counts from the planned arrival, so that a slow
 * server cannot hide behind requests that were never sent. Prints "start" and "stop" around what it
 * measures, then waits for a line on standard input (so that the server can be looked at while all
 * is still open), then prints one JSON line. Times in it are microseconds.
 *
 * usage: load -p PORT [-b BODY_FILE] [options]
 *   -P PATH      default /v1/messages; GET when there is no body
 *   -H HEADER    one more header line, may be repeated
 *   -c COUNT     connections (1)        -a COUNT  requests in flight at once (all connections)
 *   -w SECONDS   warm-up (1)            -d SECONDS  what is measured (5)
 *   -r RATE      open loop: arrivals a second
 *   -R RATE      open connections at this rate a second instead of all at once
 *   -S SECONDS   start only when every connection has had its first byte, or after this long
 *   -n COUNT     stop after this many answers     -k  open loop: skip arrivals that find none idle
 *   -T FILE      a bearer token on each line; connections use them in turn
 *   -B MS        closed loop: a connection that was answered 429 or 5xx waits so long, as SDKs do
 */
#include "common.h"
#include "series.h"

#define ARRIVALS (1 << 20)
#define MAX_FAILURES 100000

enum state { CLOSED, CONNECTING, IDLE, BUSY };
enum part { HEAD, LENGTH, CHUNK_SIZE, CHUNK, CHUNK_END, LAST_LINE, TO_CLOSE };

struct conn {
    int fd;
    enum state state;
    size_t written;
    uint64_t began, first;        /* nanoseconds; first byte of the body, 0 before it */
    bool served, queued, waits;   /* had a first byte ever; stands in the idle queue, or waits */
    uint64_t waits_until;         /* nanoseconds; not before then is the next request sent */
    struct conn *next;            /* among those that wait, in order of their time */
    enum part part;
    char head[8192];
    size_t head_size;
    int status;
    bool closes;
    long long left;               /* bytes of the body or of the chunk */
    bool newline;                 /* the last byte of the body was one */
    int stamp_size;               /* how much of "ts=" and 19 digits was seen */
    char stamp[20];
};

static struct {
    int port, conns, active;
    bool skips;
    uint64_t answers;
    double warm, seconds, rate, ramp, settle, back_off;
} ask =
    {.conns = 1, .warm = 1, .seconds = 5};
static struct text { char *data; size_t size; } *requests;
static int request_count = 1;
static struct conn *conns;
static int poller, in_flight, idle_from, idle_count, *idle;
static uint64_t *arrivals, next_arrival;
static size_t arrival_from, arrival_to;
static struct sockaddr_in server;
static struct series latency, first_byte, event_delay, turned_away;
static struct conn *waiting, *last_waiting;
static bool measuring;
static uint64_t all_done, all_events, done, bad, errors, connect_errors, bytes, events, statuses[600];

/* --- figures ------------------------------------------------------------------------------ */

static void print_figures(double seconds)
{
    const char *comma = "";
    int active = 0;
    for (int i = 0; i < ask.conns; i++) active += conns[i].state == BUSY;
    printf("{\"done\":%lu,\"seconds\":%.4f,\"bad\":%lu,\"errors\":%lu,\"connect_errors\":%lu,"
           "\"bytes\":%lu,\"events\":%lu,\"all_done\":%lu,\"all_events\":%lu,\"active\":%d",
           done, seconds, bad, errors, connect_errors, bytes, events, all_done, all_events, active);
    print_series("latency", &latency);
    print_series("first_byte", &first_byte);
    print_series("event_delay", &event_delay);
    print_series("turned_away", &turned_away);
    printf(",\"statuses\":{");
    for (int i = 0; i < 600; i++)
        if (statuses[i]) { printf("%s\"%d\":%lu", comma, i, statuses[i]); comma = ","; }
    printf("}}\n");
}

/* --- requests ----------------------------------------------------------------------------- */

static void watch(struct conn *c, bool writes)
{
    struct epoll_event e = {.events = EPOLLIN | (writes ? EPOLLOUT : 0), .data.ptr = c};
    epoll_ctl(poller, EPOLL_CTL_MOD, c->fd, &e);
}

static void open_conn(struct conn *c)
{
    struct epoll_event e = {.events = EPOLLIN | EPOLLOUT, .data.ptr = c};
    c->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    c->state = CONNECTING;
    without_delay(c->fd);
    connect(c->fd, (void *)&server, sizeof server);
    epoll_ctl(poller, EPOLL_CTL_ADD, c->fd, &e);
}

static void send_more(struct conn *c)
{
    struct text *request = &requests[(c - conns) % request_count];
    while (c->written < request->size) {
        ssize_t sent = send(c->fd, request->data + c->written, request->size - c->written,
                            MSG_NOSIGNAL);
        if (sent < 0) { watch(c, errno == EAGAIN); return; }
        c->written += sent;
    }
    watch(c, false);
}

static void begin(struct conn *c, uint64_t at)
{
    c->state = BUSY;
    c->began = at;
    c->first = c->written = c->head_size = c->stamp_size = 0;
    c->part = HEAD;
    c->closes = c->newline = false;
    in_flight++;
    send_more(c);
}

/* Start what may start: in turn over all connections, so that each of them is used. */
static void start_requests(void)
{
    while (idle_count && (ask.rate ? arrival_from < arrival_to : in_flight < ask.active)) {
        struct conn *c = &conns[idle[idle_from]];
        idle_from = (idle_from + 1) % ask.conns;
        idle_count--;
        c->queued = false;
        if (c->state == IDLE) begin(c, ask.rate ? arrivals[arrival_from++ % ARRIVALS] : nanoseconds());
    }
}

static void rest(struct conn *c)
{
    if (c->waits_until) {
        c->state = IDLE;
        if (c->waits) return;
        c->waits = true;
        c->next = NULL;
        if (waiting) last_waiting->next = c; else waiting = c;
        last_waiting = c;
        return;
    }
    c->state = IDLE;
    if (c->queued) return;
    c->queued = true;
    idle[(idle_from + idle_count++) % ask.conns] = c - conns;
}

/* Let go on who has waited for long enough; all wait equally long. */
static void wake(uint64_t at)
{
    while (waiting && waiting->waits_until <= at) {
        struct conn *c = waiting;
        waiting = c->next;
        c->waits = false;
        c->waits_until = 0;
        if (c->state == IDLE) rest(c);
    }
}

static void reopen(struct conn *c)
{
    if (c->state == BUSY) in_flight--;
    close(c->fd);
    c->state = CLOSED;
    if (errors + connect_errors < MAX_FAILURES) open_conn(c);
}

static void finish(struct conn *c)
{
    uint64_t at = nanoseconds();
    if (!c->first) c->first = at;
    c->served = true;
    all_done++;
    bool away = c->status == 429 || c->status >= 500;
    if (away && ask.back_off) c->waits_until = at + ask.back_off * 1e6;
    if (measuring) {
        done++;
        bad += c->status != 200;
        if (c->status > 0 && c->status < 600) statuses[c->status]++;
        note(away ? &turned_away : &latency, at - c->began);
        note(&first_byte, c->first - c->began);
    }
    if (c->closes) { reopen(c); return; }
    in_flight--;
    rest(c);
}

/* --- answers ------------------------------------------------------------------------------ */

/* Count events (they end in an empty line) and take the time stamps out of them. */
static void body(struct conn *c, const char *at, size_t size)
{
    uint64_t arrived = 0;
    if (measuring) bytes += size;
    for (const char *end = at + size; at < end;) {
        char letter = *at++;
        if (letter == '\n') {
            all_events += c->newline;
            events += c->newline && measuring;
            c->newline = !c->newline;
            c->stamp_size = 0;
            continue;
        }
        c->newline = false;
        if (c->stamp_size < 3) {
            c->stamp_size = letter == "ts="[c->stamp_size] ? c->stamp_size + 1 : letter == 't';
            continue;
        }
        if (letter < '0' || letter > '9') { c->stamp_size = 0; continue; }
        c->stamp[c->stamp_size - 3] = letter;
        if (++c->stamp_size < 22) continue;
        c->stamp_size = 0;
        uint64_t sent = strtoull(c->stamp, NULL, 10);
        if (!sent || !measuring) continue;
        if (!arrived) arrived = nanoseconds();
        if (arrived > sent) note(&event_delay, arrived - sent);
    }
}

/* Take the head out of what came; returns how much of it was used, 0 when the head is too long. */
static size_t head(struct conn *c, const char *at, size_t size)
{
    size_t old = c->head_size, room = sizeof c->head - 1 - old;
    if (size > room) size = room;
    memcpy(c->head + old, at, size);
    c->head_size += size;
    c->head[c->head_size] = 0;
    char *end = strstr(c->head, "\r\n\r\n"), *line;
    if (!end) return size;
    *end = 0;
    c->status = atoi(c->head + 9);
    c->closes = strcasestr(c->head, "\r\nconnection: close");
    c->part = TO_CLOSE;
    if ((line = strcasestr(c->head, "\r\ncontent-length:"))) {
        c->part = LENGTH;
        c->left = atoll(line + 17);
    }
    if (strcasestr(c->head, "\r\ntransfer-encoding:")) { c->part = CHUNK_SIZE; c->left = 0; }
    if (c->status == 100) c->part = HEAD;
    c->head_size = 0;
    if (c->part == LENGTH && !c->left) finish(c);
    return end + 4 - c->head - old;
}

static void chunk_size(struct conn *c, char letter)
{
    if (letter == '\n') c->part = c->left ? CHUNK : LAST_LINE;
    else if (letter != '\r')
        c->left = c->left * 16 + (letter <= '9' ? letter - '0' : (letter | 32) - 'a' + 10);
}

/* Read what came for a request; false: it is no HTTP that we know. */
static bool answer(struct conn *c, const char *at, size_t size)
{
    for (const char *end = at + size; at < end;) {
        size_t n = end - at;
        if (c->state != BUSY) return false;
        if (c->part == HEAD) {
            size_t used = head(c, at, n);
            if (!used) return false;
            at += used;
            continue;
        }
        if (!c->first) { c->first = nanoseconds(); c->served = true; }
        switch (c->part) {
        case LENGTH:
        case CHUNK:
            if ((long long)n > c->left) n = c->left;
            body(c, at, n);
            at += n;
            c->left -= n;
            if (!c->left && c->part == LENGTH) finish(c);
            else if (!c->left) c->part = CHUNK_END;
            break;
        case CHUNK_SIZE: chunk_size(c, *at++); break;
        case CHUNK_END: if (*at++ == '\n') c->part = CHUNK_SIZE; break;
        case LAST_LINE: if (*at++ == '\n') finish(c); break;
        default: body(c, at, n); at = end; break;
        }
    }
    return true;
}

static void lost(struct conn *c)
{
    if (c->state == BUSY && c->part == TO_CLOSE) { c->closes = true; finish(c); return; }
    if (c->state == BUSY) errors++;
    reopen(c);
}

static void ready(struct conn *c, uint32_t what)
{
    static char data[262144];
    if (c->state == CONNECTING) {
        if (what & (EPOLLERR | EPOLLHUP)) { connect_errors++; reopen(c); return; }
        watch(c, false);
        rest(c);
        return;
    }
    if ((what & EPOLLOUT) && c->state == BUSY) send_more(c);
    if (!(what & (EPOLLIN | EPOLLHUP | EPOLLERR))) return;
    ssize_t got = recv(c->fd, data, sizeof data, 0);
    if (got > 0) { if (!answer(c, data, got)) { errors++; reopen(c); } }
    else if (got == 0 || errno != EAGAIN) lost(c);
}

/* --- the run ------------------------------------------------------------------------------ */

static char *slurp(const char *name, size_t *size)
{
    FILE *file = fopen(name, "rb");
    if (!file) { perror(name); exit(2); }
    fseek(file, 0, SEEK_END);
    *size = ftell(file);
    rewind(file);
    char *data = malloc(*size + 1);
    if (fread(data, 1, *size, file) != *size) { perror(name); exit(2); }
    fclose(file);
    return data;
}

static void write_request(struct text *to, const char *path, const char *headers,
                          const char *token, const char *data, size_t size)
{
    to->data = malloc(size + strlen(headers) + strlen(token) + 1024);
    to->size = sprintf(to->data,
        "%s %s HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nAccept: application/json\r\n"
        "User-Agent: Anthropic/Python 2.14.0\r\nanthropic-version: 2023-06-01\r\n"
        "X-Stainless-Lang: python\r\nX-Stainless-Package-Version: 2.14.0\r\nX-Stainless-OS: Linux\r\n"
        "X-Stainless-Arch: x64\r\nX-Stainless-Runtime: CPython\r\n%s",
        data ? "POST" : "GET", path, ask.port, headers);
    if (*token) to->size += sprintf(to->data + to->size, "Authorization: Bearer %s\r\n", token);
    if (data)
        to->size += sprintf(to->data + to->size,
            "Content-Type: application/json\r\nContent-Length: %zu\r\n", size);
    to->size += sprintf(to->data + to->size, "\r\n");
    memcpy(to->data + to->size, data, size);
    to->size += size;
}

static void read_words(int count, char **words)
{
    char headers[32768] = "", *data = NULL, *tokens = NULL;
    const char *path = "/v1/messages";
    size_t size = 0, token_size;
    for (int o; (o = getopt(count, words, "p:b:P:H:c:a:w:d:r:R:S:n:B:T:k")) > 0;) switch (o) {
        case 'p': ask.port = atoi(optarg); break;
        case 'b': data = slurp(optarg, &size); break;
        case 'P': path = optarg; break;
        case 'H': strcat(strcat(headers, optarg), "\r\n"); break;
        case 'c': ask.conns = atoi(optarg); break;
        case 'a': ask.active = atoi(optarg); break;
        case 'w': ask.warm = atof(optarg); break;
        case 'd': ask.seconds = atof(optarg); break;
        case 'r': ask.rate = atof(optarg); break;
        case 'R': ask.ramp = atof(optarg); break;
        case 'n': ask.answers = atoll(optarg); break;
        case 'k': ask.skips = true; break;
        case 'T': tokens = slurp(optarg, &token_size); tokens[token_size] = 0; break;
        case 'B': ask.back_off = atof(optarg); break;
        case 'S': ask.settle = atof(optarg); break;
        default: exit(2);
    }
    if (!ask.active) ask.active = ask.conns;
    for (char *at = tokens; at && *at; at++) request_count += *at == '\n' && at[1];
    requests = calloc(request_count, sizeof *requests);
    for (int i = 0; i < request_count; i++) {
        char *token = tokens ? strsep(&tokens, "\n") : "";
        write_request(&requests[i], path, headers, token, data, size);
    }
}

static bool settled(void)
{
    for (int i = 0; i < ask.conns; i++) if (!conns[i].served) return false;
    return true;
}

/* One turn of the loop: open, arrive, start, wait. */
static void turn(uint64_t at, uint64_t began, int *opened)
{
    static struct epoll_event got[512];
    double may = ask.ramp ? (at - began) / 1e9 * ask.ramp : ask.conns;
    while (*opened < ask.conns && *opened < may) open_conn(&conns[(*opened)++]);
    for (; ask.rate && next_arrival <= at; next_arrival += 1e9 / ask.rate)
        if (arrival_to - arrival_from < ARRIVALS) arrivals[arrival_to++ % ARRIVALS] = next_arrival;
    if (ask.back_off) wake(at);
    start_requests();
    if (ask.skips) arrival_from = arrival_to;
    /* Arrivals are waited for awake, but only the last of the way: others share this core. */
    bool soon = ask.rate && next_arrival < at + 2000000;
    int n = epoll_wait(poller, got, 512, soon ? 0 : 1);
    for (int i = 0; i < n; i++) ready(got[i].data.ptr, got[i].events);
}

int main(int count, char **words)
{
    int opened = 0;
    signal(SIGPIPE, SIG_IGN);
    read_words(count, words);
    latency = new_series(2000000);
    first_byte = new_series(2000000);
    event_delay = new_series(4000000);
    turned_away = new_series(2000000);
    arrivals = malloc(ARRIVALS * sizeof *arrivals);
    conns = calloc(ask.conns, sizeof *conns);
    idle = calloc(ask.conns, sizeof *idle);
    server = loopback(ask.port);
    poller = epoll_create1(0);
    uint64_t began = nanoseconds(), warm_until = 0, start = 0;
    uint64_t give_up = began + ask.settle * 1e9;
    next_arrival = began;
    for (uint64_t at; at = nanoseconds(), !start || at < start + ask.seconds * 1e9;) {
        if (ask.answers && done >= ask.answers) break;
        if (!warm_until && (!ask.settle || at > give_up || (opened == ask.conns && settled())))
            warm_until = at + ask.warm * 1e9;
        if (!start && warm_until && at >= warm_until) {
            start = at;
            measuring = true;
            puts("start");
            fflush(stdout);
        }
        turn(at, began, &opened);
    }
    measuring = false;
    double seconds = (nanoseconds() - start) / 1e9;
    puts("stop");
    fflush(stdout);
    getchar();
    print_figures(seconds);
    return 0;
}
