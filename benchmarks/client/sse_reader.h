/* Counts server-sent events in a chunked HTTP answer, byte by byte over any split. No JSON, no records: the least a client can do. */
#ifndef SSE_READER_H
#define SSE_READER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum reader_state { IN_HEAD, IN_SIZE, IN_DATA, AFTER_DATA, IN_END };

struct reader {
    enum reader_state state;
    unsigned head_matched;  /* bytes of CRLFCRLF seen in a row */
    unsigned long left;     /* of the present chunk; while in its size line, the size so far */
    bool newline;           /* the last byte of the body was a line's end */
    uint64_t seq;           /* the sequence number in the answer's id; 0 until seen */
    uint32_t events, room;  /* events seen, and how many stamps fit */
    uint64_t *stamps;
};

/* Takes one read; every event that ends in it gets `at_ns`. True when the answer is complete. */
bool reader_feed(struct reader *r, const char *data, size_t len, uint64_t at_ns);

#endif
