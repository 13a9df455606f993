#define _GNU_SOURCE
#include "sse_reader.h"

#include <stdlib.h>
#include <string.h>

enum { ID_DIGITS = 16 };

static void event_ended(struct reader *r, uint64_t at_ns)
{
    if (r->events < r->room)
        r->stamps[r->events] = at_ns;
    r->events++;
}

static void read_seq(struct reader *r, const char *p, size_t len)
{
    const char *id = memmem(p, len, "cmpl-", 5);
    if (!id || (size_t)(p + len - id) < 5 + ID_DIGITS)
        return;
    char digits[ID_DIGITS + 1] = {0};
    memcpy(digits, id + 5, ID_DIGITS);
    r->seq = strtoull(digits, NULL, 16);
}

/* An event ends with an empty line: two line ends in a row, possibly in two reads. */
static void read_body(struct reader *r, const char *p, size_t len, uint64_t at_ns)
{
    const char *end = p + len;
    if (!r->seq)
        read_seq(r, p, len);
    while (p < end) {
        if (*p == '\n') {
            if (r->newline)
                event_ended(r, at_ns);
            r->newline = !r->newline;
            p++;
            continue;
        }
        r->newline = false;
        p = memchr(p, '\n', (size_t)(end - p));
        if (!p)
            return;
    }
}

bool reader_feed(struct reader *r, const char *p, size_t len, uint64_t at_ns)
{
    const char *end = p + len;
    while (p < end)
        switch (r->state) {
        case IN_HEAD: {
            const char c = *p++;
            r->head_matched = c == "\r\n\r\n"[r->head_matched] ? r->head_matched + 1 : c == '\r';
            if (r->head_matched == 4)
                r->state = IN_SIZE;
            break;
        }
        case IN_SIZE: {
            const char c = *p++;
            if (c == '\n')
                r->state = r->left ? IN_DATA : IN_END;
            else if (c != '\r')
                r->left = r->left * 16 + (unsigned)(c <= '9' ? c - '0' : (c | 32) - 'a' + 10);
            break;
        }
        case IN_DATA: {
            const size_t take = (size_t)(end - p) < r->left ? (size_t)(end - p) : r->left;
            read_body(r, p, take, at_ns);
            p += take;
            r->left -= take;
            if (!r->left)
                r->state = AFTER_DATA;
            break;
        }
        case AFTER_DATA:
            if (*p++ == '\n')
                r->state = IN_SIZE;
            break;
        case IN_END:
            if (*p++ == '\n')
                return true;
            break;
        }
    return false;
}
