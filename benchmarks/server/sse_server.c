/* A server that is never the bottleneck: OpenAI-compatible answers streamed at exact times, one thread, one epoll.
 *
 *   sse_server [--host H] [--port P] [--model NAME] [--log FILE] [--KEY VALUE …, the other keys of /config]
 *
 * POST …/chat/completions, …/completions; GET /health, /v1/models, and for the one who measures:
 *   /config?ttft=MS&itl=MS&tokens=N&per_event=K&per_send=K&burst=0|1&sync=0|1&chunked=0|1&log=0|1&tag=0|1
 *   /stats   counters since the last reset, as JSON        /reset   forgets counters and truth
 *   /dump    writes the truth log (truth.h) and forgets it
 *
 * ttft, itl: milliseconds from the request to its first event, and between events. ttft=0 answers at once.
 * tokens: when the request names none. per_event: tokens in one event.
 * burst: no pace; `per_send` events in each send() as fast as the socket takes them.
 * sync: events of all streams fall on one grid of itl, as the steps of a batching engine do.
 * chunked: else a content-length. log: whether the truth is kept (--log FILE: where /dump writes it).
 * tag: usage.prompt_tokens tells the request's sequence number, so that a client's records can be joined with the truth.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include "answer.h"
#include "clock.h"
#include "conn.h"
#include "settings.h"
#include "truth.h"

enum { EVENTS_PER_POLL = 1024, SENDS_PER_TURN = 128 };

/* Streams wait in two first-in first-out queues: each has one delay, so its head is always due first. */
struct queue {
    struct conn *head, *tail;
};
static struct queue first_events, next_events;

static const char *truth_path = "truth.bin";
static const char *model = "mock-model";
static uint64_t requests_ever;
static volatile sig_atomic_t stopping;

static void enqueue(struct queue *q, struct conn *c)
{
    c->next = NULL;
    c->queued = true;
    if (q->tail)
        q->tail->next = c;
    else
        q->head = c;
    q->tail = c;
}

static struct conn *dequeue(struct queue *q)
{
    struct conn *c = q->head;
    q->head = c->next;
    if (!q->head)
        q->tail = NULL;
    c->queued = false;
    return c;
}

static void finish(struct conn *c)
{
    c->busy = false;
    stats.finished++;
    if (!c->keep_alive && c->fd >= 0)
        shutdown(c->fd, SHUT_WR);
}

/* Sends the next `events` events of the answer with one send(). */
static void send_events(struct conn *c, int events)
{
    static char buffer[(PER_SEND_MAX + 1) * ANSWER_EVENT_MAX];
    char *p = buffer;
    if (!c->headed)
        p = answer_head(&c->answer, p);
    c->headed = true;
    const uint64_t at_ns = now_ns();
    const int tokens_before = c->answer.tokens_sent;
    for (int i = 0; i < events && !answer_complete(&c->answer); i++) {
        p = answer_event(&c->answer, p);
        truth_sent(c->row, c->row_began, at_ns);
        stats.events++;
    }
    stats.tokens += (uint64_t)(c->answer.tokens_sent - tokens_before);
    conn_send(c, buffer, (size_t)(p - buffer));
    if (c->fd >= 0 && answer_complete(&c->answer))
        finish(c);
}

static void send_plain(struct conn *c)
{
    size_t len;
    char *answer = answer_plain(&c->answer, model, &len);
    truth_sent(c->row, c->row_began, now_ns());
    conn_send(c, answer, len);
    free(answer);
    stats.tokens += (uint64_t)c->answer.tokens;
    stats.events++;
    finish(c);
}

static uint64_t on_grid(uint64_t at_ns)
{
    const uint64_t step = (uint64_t)(settings.itl * 1e6);
    return settings.sync && step ? (at_ns + step - 1) / step * step : at_ns;
}

static void await_next(struct conn *c)
{
    c->due_ns += (uint64_t)(settings.itl * 1e6); /* from the due time, not from now: no drift */
    enqueue(&next_events, c);
}

/* A JSON key's number in a body that is not parsed any further; `otherwise` when it is absent. */
static long body_number(const char *body, const char *key, long otherwise)
{
    const char *p = strstr(body, key);
    if (!p)
        return otherwise;
    p += strlen(key);
    p += strspn(p, " :");
    return *p >= '0' && *p <= '9' ? atol(p) : otherwise;
}

static bool body_true(const char *body, const char *key)
{
    const char *p = strstr(body, key);
    if (!p)
        return false;
    p += strlen(key);
    return p[strspn(p, " :")] == 't';
}

static void begin_answer(struct conn *c, const char *path, const char *body)
{
    const uint64_t received_ns = c->arrived_ns;
    struct answer *a = &c->answer;
    const long tokens = body_number(body, "\"max_completion_tokens\"", body_number(body, "\"max_tokens\"", 0));
    a->seq = ++requests_ever;
    a->chat = strstr(path, "/chat/") != NULL;
    a->usage = body_true(body, "\"include_usage\"");
    a->chunked = settings.chunked != 0;
    a->tokens = (int)(tokens > 0 ? tokens : (long)settings.tokens);
    a->tokens_per_event = (int)settings.per_event;
    a->prompt_tokens = settings.tag ? (long)a->seq : (long)strlen(body) / 6 + 1;
    answer_start(a, model);
    c->plain = !body_true(body, "\"stream\"");
    c->burst = settings.burst && !c->plain;
    c->busy = true;
    c->headed = false;
    c->row = settings.log ? truth_begin(a->seq, received_ns, c->id, (uint64_t)answer_events(a)) : NULL;
    c->row_began = truth_cleared;
    if (stats.requests++ == 0)
        stats.first_request_ns = received_ns;
    stats.last_request_ns = received_ns;

    c->due_ns = on_grid(received_ns + (uint64_t)(settings.ttft * 1e6));
    if (c->burst)
        conn_watch(c, true);
    else if (settings.ttft > 0)
        enqueue(&first_events, c);
    else if (c->plain)
        send_plain(c);
    else {
        send_events(c, 1);
        if (c->busy)
            await_next(c);
    }
}

static void reply(struct conn *c, const char *status, const char *json)
{
    char answer[2048];
    const int len = snprintf(answer, sizeof answer, "HTTP/1.1 %s\r\ncontent-type: application/json\r\ncontent-length: %zu\r\n\r\n%s", status, strlen(json), json);
    conn_send(c, answer, (size_t)len);
}

static void answer_get(struct conn *c, const char *path)
{
    char json[1024];
    if (!strcmp(path, "/health"))
        reply(c, "200 OK", "{}");
    else if (!strcmp(path, "/v1/models")) {
        snprintf(json, sizeof json, "{\"object\":\"list\",\"data\":[{\"id\":\"%.128s\",\"object\":\"model\",\"owned_by\":\"benchmark\",\"max_model_len\":131072}]}", model);
        reply(c, "200 OK", json);
    } else if (!strncmp(path, "/config", 7))
        settings_from_query(path) ? reply(c, "200 OK", "{}") : reply(c, "400 Bad Request", "{\"error\":\"unknown key\"}");
    else if (!strcmp(path, "/stats")) {
        stats_json(json, sizeof json);
        reply(c, "200 OK", json);
    } else if (!strcmp(path, "/reset")) {
        truth_clear();
        stats = (struct stats){0};
        reply(c, "200 OK", "{}");
    } else if (!strcmp(path, "/dump")) {
        const int failed = truth_write(truth_path);
        truth_clear();
        failed ? reply(c, "500 Internal Server Error", "{\"error\":\"truth log not written\"}") : reply(c, "200 OK", "{}");
    } else
        reply(c, "404 Not Found", "{\"error\":{\"message\":\"Not Found\",\"code\":404}}");
}

/* Takes whole requests from the read buffer while the connection is free; a pipelined one waits for its turn. */
static void serve(struct conn *c)
{
    while (c->fd >= 0 && !c->busy && c->in.start < c->in.end) {
        bytes_make_room(&c->in, 1);
        c->in.data[c->in.end] = 0;
        char *head = c->in.data + c->in.start;
        char *head_end = strstr(head, "\r\n\r\n");
        if (!head_end)
            return;
        head_end[2] = 0;
        char *body = head_end + 4;
        const char *length = strcasestr(head, "\r\ncontent-length:");
        const size_t body_len = length ? strtoul(length + 17, NULL, 10) : 0;
        if ((size_t)(c->in.data + c->in.end - body) < body_len) {
            head_end[2] = '\r';
            return;
        }
        char method[8], path[512];
        if (sscanf(head, "%7s %511s", method, path) != 2) {
            conn_hang_up(c);
            return;
        }
        c->keep_alive = !strcasestr(head, "\r\nconnection: close");
        const char after_body = body[body_len];
        body[body_len] = 0;
        if (!strcmp(method, "POST") && strstr(path, "/completions"))
            begin_answer(c, path, body);
        else
            answer_get(c, path);
        body[body_len] = after_body;
        c->in.start = (size_t)(body + body_len - c->in.data);
    }
}

static void on_socket(struct conn *c, uint32_t events)
{
    if (c->fd >= 0 && events & EPOLLIN) {
        if (conn_read(c))
            serve(c);
    } else if (c->fd >= 0 && events & (EPOLLHUP | EPOLLERR | EPOLLRDHUP))
        conn_hang_up(c);
    if (c->fd >= 0 && events & EPOLLOUT && c->out.start < c->out.end)
        conn_flush(c);
    if (c->fd < 0 || !(events & EPOLLOUT) || c->out.start < c->out.end)
        return;
    if (c->busy && c->burst)
        send_events(c, (int)settings.per_send);
    if (!c->busy)
        serve(c);
    conn_watch(c, (c->busy && c->burst) || c->out.start < c->out.end);
}

static struct queue *due_first(void)
{
    if (!first_events.head)
        return next_events.head ? &next_events : NULL;
    if (!next_events.head)
        return &first_events;
    return first_events.head->due_ns <= next_events.head->due_ns ? &first_events : &next_events;
}

/* Sends what is due, a bounded number so that sockets are read in between. Returns ns to the next one, -1 for none. */
static int64_t send_due(void)
{
    for (int i = 0; i < SENDS_PER_TURN; i++) {
        struct queue *q = due_first();
        if (!q)
            return -1;
        const uint64_t now = now_ns();
        if (q->head->due_ns > now)
            return (int64_t)(q->head->due_ns - now);
        struct conn *c = dequeue(q);
        if (c->fd < 0) {
            conn_bury(c);
            continue;
        }
        const uint64_t late = now - c->due_ns;
        stats.late_count++;
        stats.late_sum_ns += late;
        if (late > stats.late_max_ns)
            stats.late_max_ns = late;
        if (c->plain)
            send_plain(c);
        else
            send_events(c, 1);
        if (c->busy)
            await_next(c);
        else
            serve(c);
    }
    return 0;
}

static void on_signal(int number)
{
    (void)number;
    stopping = 1;
}

static int listen_on(const char *host, int port)
{
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    inet_pton(AF_INET, host, &at.sin_addr);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &(int){1}, sizeof(int));
    if (fd < 0 || bind(fd, (struct sockaddr *)&at, sizeof at) < 0 || listen(fd, 8192) < 0) {
        perror("sse_server: listen");
        exit(1);
    }
    return fd;
}

int main(int argc, char **argv)
{
    const char *host = "127.0.0.1";
    int port = 8100;
    for (int i = 1; i < argc; i += 2) {
        const char *key = argv[i], *value = i + 1 < argc ? argv[i + 1] : NULL;
        if (!value || strncmp(key, "--", 2)) {
            fprintf(stderr, "usage: sse_server [--host H] [--port P] [--model NAME] [--log FILE] [--KEY VALUE ...]\n");
            return 2;
        }
        if (!strcmp(key, "--host"))
            host = value;
        else if (!strcmp(key, "--port"))
            port = atoi(value);
        else if (!strcmp(key, "--log"))
            truth_path = value;
        else if (!strcmp(key, "--model"))
            model = value;
        else if (!settings_set(key + 2, strlen(key + 2), value)) {
            fprintf(stderr, "sse_server: unknown option %s\n", key);
            return 2;
        }
    }
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
    }
    const struct sigaction stop = {.sa_handler = on_signal};
    sigaction(SIGTERM, &stop, NULL);
    sigaction(SIGINT, &stop, NULL);
    prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0);

    const int listener = listen_on(host, port), poller = epoll_create1(EPOLL_CLOEXEC);
    epoll_ctl(poller, EPOLL_CTL_ADD, listener, &(struct epoll_event){.events = EPOLLIN, .data.ptr = NULL});
    struct epoll_event events[EVENTS_PER_POLL];
    while (!stopping) {
        const int64_t wait_ns = send_due();
        const struct timespec wait = {.tv_sec = wait_ns / 1000000000, .tv_nsec = wait_ns % 1000000000};
        const int count = epoll_pwait2(poller, events, EVENTS_PER_POLL, wait_ns < 0 ? NULL : &wait, NULL);
        for (int i = 0; i < count; i++) {
            if (events[i].data.ptr)
                on_socket(events[i].data.ptr, events[i].events);
            else
                conn_accept_all(poller, listener);
        }
        conn_bury_all();
    }
    return 0;
}
