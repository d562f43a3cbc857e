/* SHA-384 of several messages at once, one in each lane of a vector.
 *
 * Included once for each kind of processor, with
 *     LANES    messages at once
 *     WORDS    a vector of that many 64-bit words
 *     NAME(x)  the name of a function here
 *     TARGET   the attribute that lets the compiler use such vectors
 * Source: FIPS 180-4, sections 4.1.3 and 6.4.
 */

/* One block of each message. */
static TARGET void NAME(compress)(uint64_t state[8][LANES], const uint8_t *const blocks[LANES])
{
    WORDS w[16], s[8], a, b, c, d, e, f, g, h;

    for (int t = 0; t < 16; t++) {
        uint64_t words[LANES];
        for (int lane = 0; lane < LANES; lane++)
            words[lane] = read_word(blocks[lane] + 8 * t);
        memcpy(&w[t], words, sizeof(WORDS));
    }
    memcpy(s, state, sizeof(s));
    a = s[0], b = s[1], c = s[2], d = s[3], e = s[4], f = s[5], g = s[6], h = s[7];
    for (int t = 0; t < 80; t += 16) {
        for (int i = 0; i < 16; i++) {
            WORDS t1 = h + BIG_1(e) + CHOICE(e, f, g) + w[i] + ROUND_WORDS[t + i];
            WORDS t2 = BIG_0(a) + MAJORITY(a, b, c);
            h = g, g = f, f = e, e = d + t1, d = c, c = b, b = a, a = t1 + t2;
            if (t < 64)
                w[i] += SMALL_1(w[(i + 14) & 15]) + w[(i + 9) & 15] + SMALL_0(w[(i + 1) & 15]);
        }
    }
    s[0] += a, s[1] += b, s[2] += c, s[3] += d, s[4] += e, s[5] += f, s[6] += g, s[7] += h;
    memcpy(state, s, sizeof(s));
}

/* All messages: a lane that is done takes the next one. */
static void NAME(hash)(const Message *messages, size_t count, uint8_t prefix)
{
    static const uint8_t nothing[BLOCK];
    uint64_t state[8][LANES];
    uint8_t edges[LANES][BLOCK];
    const uint8_t *blocks[LANES];
    const Message *message[LANES];
    size_t block[LANES];
    size_t next = 0;
    int active = 0;

    for (int lane = 0; lane < LANES; lane++) {
        message[lane] = NULL;
        blocks[lane] = nothing;
    }
    for (;;) {
        for (int lane = 0; lane < LANES; lane++) {
            if (message[lane] == NULL && next < count) {
                message[lane] = &messages[next++];
                block[lane] = 0;
                active++;
                for (int i = 0; i < 8; i++)
                    state[i][lane] = FIRST_STATE[i];
            }
            if (message[lane] != NULL)
                blocks[lane] = block_of(message[lane], prefix, block[lane], edges[lane]);
        }
        if (active == 0)
            return;
        NAME(compress)(state, blocks);
        for (int lane = 0; lane < LANES; lane++) {
            if (message[lane] == NULL || ++block[lane] < blocks_of(message[lane]))
                continue;
            for (int i = 0; i < HASH / 8; i++)
                write_word(message[lane]->hash + 8 * i, state[i][lane]);
            message[lane] = NULL;
            blocks[lane] = nothing;
            active--;
        }
    }
}
