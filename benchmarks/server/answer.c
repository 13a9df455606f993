#include "answer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { WORDS = 256, WORD_MAX = 8, CHUNK_HEAD = 6 /* four hex digits, CR, LF */ };

static char words[WORDS][WORD_MAX];
static int word_len[WORDS];

/* Words of one to seven letters behind a space, from a fixed generator: every run sends the same text. */
static void make_words(void)
{
    unsigned state = 12345;
    for (int i = 0; i < WORDS; i++) {
        word_len[i] = 2 + i % 7;
        words[i][0] = ' ';
        for (int j = 1; j < word_len[i]; j++) {
            state = state * 1103515245u + 12345u;
            words[i][j] = (char)('a' + (state >> 16) % 26);
        }
    }
}

static char *put(char *out, const char *text, size_t len)
{
    memcpy(out, text, len);
    return out + len;
}

#define PUT_LITERAL(out, text) put(out, text, sizeof(text) - 1)

static char *put_word(const struct answer *a, char *out, int token)
{
    const int w = (int)((a->seq * 31 + (uint64_t)token * 7) % WORDS);
    return put(out, words[w], (size_t)word_len[w]);
}

/* A chunk's size line has four digits always, so that it can be written after its payload. */
static char *begin_chunk(const struct answer *a, char *out) { return a->chunked ? out + CHUNK_HEAD : out; }

static char *end_chunk(const struct answer *a, char *start, char *end)
{
    if (!a->chunked)
        return end;
    const char *digits = "0123456789abcdef";
    const unsigned size = (unsigned)(end - start) - CHUNK_HEAD;
    for (int i = 0; i < 4; i++)
        start[i] = digits[(size >> (12 - 4 * i)) & 15];
    start[4] = '\r';
    start[5] = '\n';
    return PUT_LITERAL(end, "\r\n");
}

void answer_start(struct answer *a, const char *model)
{
    if (!word_len[0])
        make_words();
    const char *kind = a->chat ? "chatcmpl" : "cmpl";
    const char *object = a->chat ? "chat.completion.chunk" : "text_completion";
    a->tokens_sent = 0;
    a->envelope_len = snprintf(a->prefix, sizeof a->prefix, "data: {\"id\":\"%s-%016llx\",\"object\":\"%s\",\"created\":%ld,\"model\":\"%.128s\",",
                               kind, (unsigned long long)a->seq, object, (long)time(NULL), model);
    char *p = a->prefix + a->envelope_len;
    p = PUT_LITERAL(p, "\"choices\":[{\"index\":0,");
    if (a->chat)
        p = PUT_LITERAL(p, "\"delta\":{");
    a->role_len = (int)(p - a->prefix);
    p = a->chat ? PUT_LITERAL(p, "\"content\":\"") : PUT_LITERAL(p, "\"text\":\"");
    a->prefix_len = (int)(p - a->prefix);
}

static char *put_role(const struct answer *a, char *out)
{
    char *p = begin_chunk(a, out);
    p = put(p, a->prefix, (size_t)a->role_len);
    p = PUT_LITERAL(p, "\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,\"finish_reason\":null}]}\n\n");
    return end_chunk(a, out, p);
}

static char *put_output(struct answer *a, char *out)
{
    char *p = begin_chunk(a, out);
    p = put(p, a->prefix, (size_t)a->prefix_len);
    for (int i = 0; i < a->tokens_per_event && !answer_complete(a); i++)
        p = put_word(a, p, a->tokens_sent++);
    p = a->chat ? PUT_LITERAL(p, "\"},\"logprobs\":null,\"finish_reason\":") : PUT_LITERAL(p, "\",\"logprobs\":null,\"finish_reason\":");
    p = answer_complete(a) ? PUT_LITERAL(p, "\"length\",\"stop_reason\":null}]}\n\n") : PUT_LITERAL(p, "null}]}\n\n");
    return end_chunk(a, out, p);
}

static char *put_end(const struct answer *a, char *out)
{
    char *start = out, *p = out;
    if (a->usage) {
        p = begin_chunk(a, start);
        p = put(p, a->prefix, (size_t)a->envelope_len);
        p += sprintf(p, "\"choices\":[],\"usage\":{\"prompt_tokens\":%ld,\"total_tokens\":%ld,\"completion_tokens\":%d}}\n\n", a->prompt_tokens,
                     a->prompt_tokens + a->tokens, a->tokens);
        start = p = end_chunk(a, start, p);
    }
    p = begin_chunk(a, start);
    p = PUT_LITERAL(p, "data: [DONE]\n\n");
    p = end_chunk(a, start, p);
    return a->chunked ? PUT_LITERAL(p, "0\r\n\r\n") : p;
}

/* Rendered once into a scratch buffer and counted: only answers with a content-length pay for it. */
static size_t body_size(const struct answer *a)
{
    char scratch[ANSWER_EVENT_MAX];
    struct answer copy = *a;
    size_t size = copy.chat ? (size_t)(put_role(&copy, scratch) - scratch) : 0;
    while (!answer_complete(&copy))
        size += (size_t)(put_output(&copy, scratch) - scratch);
    return size + (size_t)(put_end(&copy, scratch) - scratch);
}

char *answer_head(struct answer *a, char *out)
{
    char *p = PUT_LITERAL(out, "HTTP/1.1 200 OK\r\nserver: benchmark\r\ncontent-type: text/event-stream; charset=utf-8\r\n");
    if (a->chunked)
        p = PUT_LITERAL(p, "transfer-encoding: chunked\r\n\r\n");
    else
        p += sprintf(p, "content-length: %zu\r\n\r\n", body_size(a));
    return a->chat ? put_role(a, p) : p;
}

char *answer_event(struct answer *a, char *out)
{
    char *p = put_output(a, out);
    return answer_complete(a) ? put_end(a, p) : p;
}

char *answer_plain(const struct answer *a, const char *model, size_t *len)
{
    const size_t room = 1024 + (size_t)a->tokens * WORD_MAX;
    char *body = malloc(room), *out = malloc(room + 256);
    if (!body || !out) {
        perror("answer");
        exit(1);
    }
    char *p = body;
    p += sprintf(p, "{\"id\":\"%s-%016llx\",\"object\":\"%s\",\"created\":%ld,\"model\":\"%.128s\",\"choices\":[{\"index\":0,%s", a->chat ? "chatcmpl" : "cmpl",
                 (unsigned long long)a->seq, a->chat ? "chat.completion" : "text_completion", (long)time(NULL), model,
                 a->chat ? "\"message\":{\"role\":\"assistant\",\"content\":\"" : "\"text\":\"");
    for (int i = 0; i < a->tokens; i++)
        p = put_word(a, p, i);
    p += sprintf(p, "\"%s,\"logprobs\":null,\"finish_reason\":\"length\"}],\"usage\":{\"prompt_tokens\":%ld,\"total_tokens\":%ld,\"completion_tokens\":%d}}",
                 a->chat ? "}" : "", a->prompt_tokens, a->prompt_tokens + a->tokens, a->tokens);
    *len = (size_t)sprintf(out, "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %zu\r\n\r\n", (size_t)(p - body));
    memcpy(out + *len, body, (size_t)(p - body));
    *len += (size_t)(p - body);
    free(body);
    return out;
}
