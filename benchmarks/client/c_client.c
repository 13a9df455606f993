/* The practical limit of a client on this machine: one thread, one epoll, a tick, kernel stamps; neither JSON nor records.
 *
 *   c_client --port 8100 --streams 256 --requests 512 --tokens 100 [--ramp-ms 20] [--tick-ms 2] [--stamps kernel|clock] [--out FILE]
 *
 * `streams` kept connections; `requests` are sent evenly over `ramp-ms` and then as connections become free.
 * tick-ms 0: wakes for every readable socket. Prints one JSON line. FILE: 64-bit words per request,
 * [sequence number, sent, scheduled, n, received[0] .. received[n-1]], as in the server's truth log.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include "clock.h"
#include "sse_reader.h"

enum { EVENTS_PER_POLL = 4096, EXTRA_EVENTS = 3 /* role, usage, [DONE] */ };

struct stream {
    struct reader reader;
    uint64_t sent_ns, scheduled_ns;
};

struct options {
    int port, streams, requests, tokens;
    double ramp_ms, tick_ms;
    bool kernel_stamps;
    const char *out;
};

static char request[1024];
static size_t request_len;
static uint64_t reads, polls, clock_stamps;
static int64_t realtime_offset_ns;

static void fail(const char *what)
{
    perror(what);
    exit(1);
}

static int dial(const struct options *o)
{
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((uint16_t)o->port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    if (fd < 0 || connect(fd, (struct sockaddr *)&at, sizeof at) < 0)
        fail("c_client: connect");
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (o->kernel_stamps)
        setsockopt(fd, SOL_SOCKET, SO_TIMESTAMPNS, &one, sizeof one);
    return fd;
}

static void make_request(const struct options *o)
{
    char body[512];
    const int len = snprintf(body, sizeof body,
                             "{\"model\":\"mock-model\",\"messages\":[{\"role\":\"user\",\"content\":\"one two three four five six seven eight nine ten\"}],"
                             "\"max_tokens\":%d,\"temperature\":0,\"stream\":true,\"stream_options\":{\"include_usage\":true}}",
                             o->tokens);
    request_len = (size_t)snprintf(request, sizeof request,
                                   "POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
                                   o->port, len, body);
}

/* CLOCK_REALTIME minus CLOCK_MONOTONIC: kernel stamps are of the former. */
static int64_t measure_offset(void)
{
    struct timespec real;
    const uint64_t before = now_ns();
    clock_gettime(CLOCK_REALTIME, &real);
    const uint64_t after = now_ns();
    return real.tv_sec * 1000000000l + real.tv_nsec - (int64_t)((before + after) / 2);
}

/* The moment the data reached this machine when the kernel tells it, else now. */
static uint64_t stamp_of(struct msghdr *message)
{
    for (struct cmsghdr *c = CMSG_FIRSTHDR(message); c; c = CMSG_NXTHDR(message, c))
        if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_TIMESTAMPNS) {
            struct timespec t;
            memcpy(&t, CMSG_DATA(c), sizeof t);
            return (uint64_t)(t.tv_sec * 1000000000l + t.tv_nsec - realtime_offset_ns);
        }
    clock_stamps++;
    return now_ns();
}

/* Reads once; true when the answer on this socket is complete. */
static bool drain(int fd, struct stream *s)
{
    static char buffer[1 << 18];
    char control[128];
    struct iovec part = {buffer, sizeof buffer};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    const ssize_t got = recvmsg(fd, &message, MSG_DONTWAIT);
    reads++;
    if (got < 0 && errno == EAGAIN)
        return false;
    if (got <= 0)
        fail("c_client: the server hung up");
    return s && reader_feed(&s->reader, buffer, (size_t)got, stamp_of(&message));
}

static void write_log(const struct stream *streams, const struct options *o)
{
    FILE *file = fopen(o->out, "wb");
    if (!file)
        fail(o->out);
    for (int i = 0; i < o->requests; i++) {
        const struct reader *r = &streams[i].reader;
        const uint64_t outputs = r->events > EXTRA_EVENTS ? r->events - EXTRA_EVENTS : 0;
        const uint64_t head[4] = {r->seq, streams[i].sent_ns, streams[i].scheduled_ns, outputs};
        fwrite(head, sizeof head[0], 4, file);
        fwrite(r->stamps + 1, sizeof r->stamps[0], outputs, file);
    }
    if (fclose(file))
        fail(o->out);
}

static struct timespec timespec_of(uint64_t ns)
{
    return (struct timespec){.tv_sec = (time_t)(ns / 1000000000u), .tv_nsec = (long)(ns % 1000000000u)};
}

/* Sends and drains until every request is answered. Sleeps to the earlier of the tick and the next due send. */
static void run(struct stream *streams, int *idle, int *fds, struct stream **by_fd, const struct options *o)
{
    static struct epoll_event ready[EVENTS_PER_POLL];
    const int poller = epoll_create1(EPOLL_CLOEXEC);
    for (int i = 0; i < o->streams; i++) {
        struct epoll_event e = {.events = EPOLLIN, .data.fd = fds[i]};
        epoll_ctl(poller, EPOLL_CTL_ADD, fds[i], &e);
    }
    const uint64_t start_ns = now_ns() + 1000000, tick_ns = (uint64_t)(o->tick_ms * 1e6);
    const double gap_ns = o->ramp_ms * 1e6 / o->requests;
    uint64_t next_tick = start_ns, next_offset = 0;
    int next = 0, answered = 0, idles = o->streams;
    while (answered < o->requests) {
        uint64_t now = now_ns(), due = UINT64_MAX;
        if (now >= next_offset) {
            realtime_offset_ns = measure_offset();
            next_offset = now + 1000000000u;
        }
        while (next < o->requests && idles > 0) {
            due = start_ns + (uint64_t)(gap_ns * next);
            if (due > now && due > (now = now_ns()))
                break;
            struct stream *s = &streams[next++];
            const int fd = idle[--idles];
            by_fd[fd] = s;
            s->scheduled_ns = due;
            s->sent_ns = now_ns();
            if (send(fd, request, request_len, MSG_NOSIGNAL) != (ssize_t)request_len)
                fail("c_client: send");
            due = UINT64_MAX;
        }
        struct timespec none = {0, 0}, wait;
        int count;
        if (tick_ns) {
            now = now_ns();
            if (now >= next_tick)
                next_tick = now + tick_ns - (now - next_tick) % tick_ns;
            const uint64_t until = due < next_tick ? due : next_tick;
            wait = timespec_of(until);
            clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &wait, NULL);
            count = epoll_pwait2(poller, ready, EVENTS_PER_POLL, &none, NULL);
        } else {
            now = now_ns();
            wait = timespec_of(due > now ? due - now : 0);
            count = epoll_pwait2(poller, ready, EVENTS_PER_POLL, due == UINT64_MAX ? NULL : &wait, NULL);
        }
        polls++;
        for (int i = 0; i < count; i++) {
            const int fd = ready[i].data.fd;
            if (drain(fd, by_fd[fd])) {
                by_fd[fd] = NULL;
                idle[idles++] = fd;
                answered++;
            }
        }
    }
}

static struct options read_options(int argc, char **argv)
{
    struct options o = {.port = 8100, .streams = 256, .requests = 256, .tokens = 100, .ramp_ms = 20, .tick_ms = 2, .kernel_stamps = true};
    for (int i = 1; i + 1 < argc; i += 2) {
        const char *key = argv[i], *value = argv[i + 1];
        if (!strcmp(key, "--port"))
            o.port = atoi(value);
        else if (!strcmp(key, "--streams"))
            o.streams = atoi(value);
        else if (!strcmp(key, "--requests"))
            o.requests = atoi(value);
        else if (!strcmp(key, "--tokens"))
            o.tokens = atoi(value);
        else if (!strcmp(key, "--ramp-ms"))
            o.ramp_ms = atof(value);
        else if (!strcmp(key, "--tick-ms"))
            o.tick_ms = atof(value);
        else if (!strcmp(key, "--stamps"))
            o.kernel_stamps = !strcmp(value, "kernel");
        else if (!strcmp(key, "--out"))
            o.out = value;
        else {
            fprintf(stderr, "c_client: unknown option %s\n", key);
            exit(2);
        }
    }
    return o;
}

int main(int argc, char **argv)
{
    const struct options o = read_options(argc, argv);
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
    }
    prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0);
    make_request(&o);

    const uint32_t room = (uint32_t)o.tokens + EXTRA_EVENTS;
    struct stream *streams = calloc((size_t)o.requests, sizeof *streams);
    uint64_t *stamps = calloc((size_t)o.requests * room, sizeof *stamps);
    int *fds = calloc((size_t)o.streams, sizeof *fds), *idle = calloc((size_t)o.streams, sizeof *idle), highest = 0;
    if (!streams || !stamps || !fds || !idle)
        fail("c_client: memory");
    for (int i = 0; i < o.requests; i++)
        streams[i].reader = (struct reader){.room = room, .stamps = stamps + (size_t)i * room};
    for (int i = 0; i < o.streams; i++) {
        fds[i] = idle[i] = dial(&o);
        highest = fds[i] > highest ? fds[i] : highest;
    }
    struct stream **by_fd = calloc((size_t)highest + 1, sizeof *by_fd);
    if (!by_fd)
        fail("c_client: memory");

    const uint64_t began_ns = now_ns();
    run(streams, idle, fds, by_fd, &o);
    const double wall_s = (double)(now_ns() - began_ns) / 1e9;

    uint64_t tokens = 0;
    for (int i = 0; i < o.requests; i++)
        tokens += streams[i].reader.events - EXTRA_EVENTS;
    if (o.out)
        write_log(streams, &o);
    printf("{\"requests\":%d,\"tokens\":%llu,\"wall_s\":%.4f,\"reads\":%llu,\"polls\":%llu,\"clock_stamps\":%llu}\n", o.requests, (unsigned long long)tokens,
           wall_s, (unsigned long long)reads, (unsigned long long)polls, (unsigned long long)clock_stamps);
    return 0;
}
