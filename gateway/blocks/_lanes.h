/* SHA-384 of several messages at once, one in each lane of a vector.
 *
 * Included once for each kind of processor, with
 *     LANES    messages at once
 *     WORDS    a vector of that many 64-bit words
 *     NAME(x)  the name of a function here
 *     TARGET   the attribute that lets the compiler use such vectors
 * and after `NAME(load)`, which reads one block of each message.
 * Source: FIPS 180-4, sections 4.1.3 and 6.4.
 */

/* One block of each message. */
static inline TARGET void NAME(compress)(WORDS state[8], const uint8_t *const blocks[LANES])
{
    WORDS w[16], a, b, c, d, e, f, g, h;

    NAME(load)(w, blocks);
    a = state[0], b = state[1], c = state[2], d = state[3], e = state[4], f = state[5], g = state[6], h = state[7];
    for (int t = 0; t < 80; t += 16) {
#pragma GCC unroll 16 /* so that the words stay in registers */
        for (int i = 0; i < 16; i++) {
            WORDS t1 = h + BIG_1(e) + CHOICE(e, f, g) + w[i] + ROUND_WORDS[t + i];
            WORDS t2 = BIG_0(a) + MAJORITY(a, b, c);
            h = g, g = f, f = e, e = d + t1, d = c, c = b, b = a, a = t1 + t2;
            if (t < 64)
                w[i] += SMALL_1(w[(i + 14) & 15]) + w[(i + 9) & 15] + SMALL_0(w[(i + 1) & 15]);
        }
    }
    state[0] += a, state[1] += b, state[2] += c, state[3] += d;
    state[4] += e, state[5] += f, state[6] += g, state[7] += h;
}

/* All messages: a lane that is done takes the next one. */
static TARGET void NAME(hash)(const Message *messages, size_t count, uint8_t prefix)
{
    static const uint8_t nothing[BLOCK];
    union {
        WORDS of_all[8];
        uint64_t of[8][LANES];
    } state;
    uint8_t edges[LANES][BLOCK];
    const uint8_t *blocks[LANES];
    const Message *message[LANES];
    size_t block[LANES] = {0}, left[LANES] = {0};
    size_t next = 0;
    int active = 0;

    for (int lane = 0; lane < LANES; lane++) {
        message[lane] = NULL;
        blocks[lane] = nothing;
    }
    for (;;) {
        int is_new = active == 0 && count - next >= LANES;

        if (is_new) /* all lanes at once: single words would have to wait for each other */
            for (int i = 0; i < 8; i++)
                state.of_all[i] = (WORDS){0} + FIRST_STATE[i];
        for (int lane = 0; lane < LANES; lane++) {
            if (message[lane] == NULL && next < count) {
                message[lane] = &messages[next++];
                block[lane] = 0;
                left[lane] = blocks_of(message[lane]);
                active++;
                for (int i = 0; i < 8 && !is_new; i++)
                    state.of[i][lane] = FIRST_STATE[i];
            }
            if (message[lane] != NULL)
                blocks[lane] = block_of(message[lane], prefix, block[lane], edges[lane]);
        }
        if (active == 0)
            return;
        NAME(compress)(state.of_all, blocks);
        for (int lane = 0; lane < LANES; lane++) {
            if (message[lane] == NULL)
                continue;
            block[lane]++;
            if (--left[lane] > 0)
                continue;
            for (int i = 0; i < HASH / 8; i++)
                write_word(message[lane]->hash + 8 * i, state.of[i][lane]);
            message[lane] = NULL;
            blocks[lane] = nothing;
            active--;
        }
    }
}
