/* One connection: its buffers and the answer it is sending. Sockets, no HTTP. */
#ifndef CONN_H
#define CONN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "answer.h"
#include "truth.h"

struct bytes {
    char *data;
    size_t start, end, room;
};

struct conn {
    int fd; /* -1: closed, waiting to be freed */
    uint64_t id;
    struct bytes in, out;
    bool wants_write, keep_alive;
    bool busy;   /* has an answer to send; further requests wait in `in` */
    bool queued; /* stands in one of the server's queues, which must let go of it first */
    bool plain, burst, headed;
    struct answer answer;
    struct truth_row *row;
    uint64_t row_began; /* see truth_sent */
    uint64_t arrived_ns; /* of the last data read */
    uint64_t due_ns;
    struct conn *next;      /* in its queue */
    struct conn *next_dead; /* among those to free */
};

void conn_accept_all(int epoll_fd, int listener);

/* Reads all that is there and notes when its last byte reached this machine: the kernel's stamp, so that a server that reads late
 * does not say that the request came late. False when the peer is gone (the connection is then hung up). */
bool conn_read(struct conn *c);

/* Sends what the socket takes now and keeps the rest for conn_flush, on EPOLLOUT. */
void conn_send(struct conn *c, const char *data, size_t len);
void conn_flush(struct conn *c);

/* Asks for EPOLLOUT, or no longer. */
void conn_watch(struct conn *c, bool write);

/* Closes; the memory goes with the next conn_bury_all after the connection has left its queue. */
void conn_hang_up(struct conn *c);
void conn_bury(struct conn *c);
void conn_bury_all(void);

/* Room for `more` bytes at the end of the read buffer. */
void bytes_make_room(struct bytes *b, size_t more);

#endif
