#define _GNU_SOURCE
#include "conn.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "clock.h"
#include "settings.h"

enum { READ_MIN = 4096 };

static int poller;
static uint64_t connections_ever;
static struct conn *dead;

void bytes_make_room(struct bytes *b, size_t more)
{
    if (b->start == b->end)
        b->start = b->end = 0;
    if (b->room - b->end >= more)
        return;
    b->room = (b->end + more) * 2;
    b->data = realloc(b->data, b->room);
    if (!b->data) {
        perror("buffer");
        exit(1);
    }
}

void conn_accept_all(int epoll_fd, int listener)
{
    poller = epoll_fd;
    for (;;) {
        const int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0)
            return;
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
        setsockopt(fd, SOL_SOCKET, SO_TIMESTAMPNS, &(int){1}, sizeof(int));
        struct conn *c = calloc(1, sizeof *c);
        if (!c) {
            perror("connection");
            exit(1);
        }
        c->fd = fd;
        c->id = ++connections_ever;
        stats.connections++;
        struct epoll_event e = {.events = EPOLLIN | EPOLLRDHUP, .data.ptr = c};
        epoll_ctl(poller, EPOLL_CTL_ADD, fd, &e);
    }
}

/* CLOCK_REALTIME minus CLOCK_MONOTONIC, sampled once a second: kernel stamps are of the former. */
static int64_t realtime_offset(uint64_t now)
{
    static int64_t offset;
    static uint64_t next_sample;
    if (now >= next_sample) {
        struct timespec real;
        const uint64_t before = now_ns();
        clock_gettime(CLOCK_REALTIME, &real);
        offset = real.tv_sec * 1000000000l + real.tv_nsec - (int64_t)((before + now_ns()) / 2);
        next_sample = now + 1000000000u;
    }
    return offset;
}

static uint64_t arrival_of(struct msghdr *message)
{
    const uint64_t now = now_ns();
    for (struct cmsghdr *m = CMSG_FIRSTHDR(message); m; m = CMSG_NXTHDR(message, m))
        if (m->cmsg_level == SOL_SOCKET && m->cmsg_type == SCM_TIMESTAMPNS) {
            struct timespec t;
            memcpy(&t, CMSG_DATA(m), sizeof t);
            return (uint64_t)(t.tv_sec * 1000000000l + t.tv_nsec - realtime_offset(now));
        }
    return now;
}

bool conn_read(struct conn *c)
{
    for (;;) {
        bytes_make_room(&c->in, READ_MIN);
        const size_t room = c->in.room - c->in.end;
        char control[128];
        struct iovec part = {c->in.data + c->in.end, room};
        struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
        const ssize_t got = recvmsg(c->fd, &message, MSG_DONTWAIT);
        if (got == 0 || (got < 0 && errno != EAGAIN)) {
            conn_hang_up(c);
            return false;
        }
        if (got > 0) {
            c->in.end += (size_t)got;
            c->arrived_ns = arrival_of(&message);
        }
        if (got < 0 || (size_t)got < room)
            return true;
    }
}

void conn_send(struct conn *c, const char *data, size_t len)
{
    if (c->fd < 0)
        return;
    if (c->out.start == c->out.end) {
        const ssize_t sent = send(c->fd, data, len, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (sent < 0 && errno != EAGAIN) {
            conn_hang_up(c);
            return;
        }
        if (sent > 0) {
            data += sent;
            len -= (size_t)sent;
        }
        if (len == 0)
            return;
        stats.blocked_sends++;
    }
    bytes_make_room(&c->out, len);
    memcpy(c->out.data + c->out.end, data, len);
    c->out.end += len;
    conn_watch(c, true);
}

void conn_flush(struct conn *c)
{
    const ssize_t sent = send(c->fd, c->out.data + c->out.start, c->out.end - c->out.start, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent > 0)
        c->out.start += (size_t)sent;
    else if (errno != EAGAIN)
        conn_hang_up(c);
}

void conn_watch(struct conn *c, bool write)
{
    if (c->wants_write == write || c->fd < 0)
        return;
    c->wants_write = write;
    struct epoll_event e = {.events = EPOLLIN | EPOLLRDHUP | (write ? EPOLLOUT : 0), .data.ptr = c};
    epoll_ctl(poller, EPOLL_CTL_MOD, c->fd, &e);
}

void conn_bury(struct conn *c)
{
    c->next_dead = dead;
    dead = c;
}

void conn_hang_up(struct conn *c)
{
    if (c->fd < 0)
        return;
    close(c->fd);
    c->fd = -1;
    c->busy = false;
    if (!c->queued)
        conn_bury(c);
}

void conn_bury_all(void)
{
    while (dead) {
        struct conn *c = dead;
        dead = c->next_dead;
        free(c->in.data);
        free(c->out.data);
        free(c);
    }
}
