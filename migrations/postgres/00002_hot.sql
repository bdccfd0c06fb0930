-- The hot tables, written in bulk and by hand. internal/index says what they mean.

-- +goose Up

-- A version of a page, valid from first_snapshot to last_snapshot of its shard; NULL: still current.
-- directory and fingerprint are 128 bits, which uuid stores without a length. Wide columns come last, so that the
-- key columns are found without a walk over them.
CREATE TABLE pages (
    shard          bigint NOT NULL,
    page           bigint NOT NULL,
    first_snapshot bigint NOT NULL,
    last_snapshot  bigint,
    inode          bigint NOT NULL,
    directory      uuid   NOT NULL,
    fingerprint    uuid   NOT NULL,
    path_key       bytea  NOT NULL,
    listing        bytea  NOT NULL,
    PRIMARY KEY (shard, directory, page, first_snapshot)
);
-- Listings are zstd already: the default would run its compressor over them again.
ALTER TABLE pages ALTER COLUMN listing SET STORAGE EXTERNAL;

-- A subtree is one range of this index. A key of a btree has at most 2,704 bytes, so it holds the beginning of
-- the path key, and whoever uses it compares the whole key as well.
CREATE INDEX pages_path ON pages (shard, substring(path_key FROM 1 FOR 1024));
-- A directory that was moved, by its inode.
CREATE INDEX pages_inode ON pages (shard, inode) WHERE page = 0 AND inode <> 0;
-- What one snapshot began and ended: its segment, its undo, and garbage collection.
CREATE INDEX pages_first ON pages (shard, first_snapshot);
CREATE INDEX pages_last ON pages (shard, last_snapshot) WHERE last_snapshot IS NOT NULL;

-- Where a chunk is: the pack is packs.id.
CREATE TABLE chunks (
    id           uuid    NOT NULL,
    pack         bigint  NOT NULL,
    frame        integer NOT NULL,
    frame_offset integer NOT NULL,
    length       integer NOT NULL,
    PRIMARY KEY (id)
) PARTITION BY HASH (id);
CREATE TABLE chunks_00 PARTITION OF chunks FOR VALUES WITH (MODULUS 16, REMAINDER 0);
CREATE TABLE chunks_01 PARTITION OF chunks FOR VALUES WITH (MODULUS 16, REMAINDER 1);
CREATE TABLE chunks_02 PARTITION OF chunks FOR VALUES WITH (MODULUS 16, REMAINDER 2);
CREATE TABLE chunks_03 PARTITION OF chunks FOR VALUES WITH (MODULUS 16, REMAINDER 3);
CREATE TABLE chunks_04 PARTITION OF chunks FOR VALUES WITH (MODULUS 16, REMAINDER 4);
CREATE TABLE chunks_05 PARTITION OF chunks FOR VALUES WITH (MODULUS 16, REMAINDER 5);
CREATE TABLE chunks_06 PARTITION OF chunks FOR VALUES WITH (MODULUS 16, REMAINDER 6);
CREATE TABLE chunks_07 PARTITION OF chunks FOR VALUES WITH (MODULUS 16, REMAINDER 7);
CREATE TABLE chunks_08 PARTITION OF chunks FOR VALUES WITH (MODULUS 16, REMAINDER 8);
CREATE TABLE chunks_09 PARTITION OF chunks FOR VALUES WITH (MODULUS 16, REMAINDER 9);
CREATE TABLE chunks_10 PARTITION OF chunks FOR VALUES WITH (MODULUS 16, REMAINDER 10);
CREATE TABLE chunks_11 PARTITION OF chunks FOR VALUES WITH (MODULUS 16, REMAINDER 11);
CREATE TABLE chunks_12 PARTITION OF chunks FOR VALUES WITH (MODULUS 16, REMAINDER 12);
CREATE TABLE chunks_13 PARTITION OF chunks FOR VALUES WITH (MODULUS 16, REMAINDER 13);
CREATE TABLE chunks_14 PARTITION OF chunks FOR VALUES WITH (MODULUS 16, REMAINDER 14);
CREATE TABLE chunks_15 PARTITION OF chunks FOR VALUES WITH (MODULUS 16, REMAINDER 15);

-- Whoever relies on pack relies on relies_on too: pack came with chunks that were there already.
CREATE TABLE pack_dependencies (
    pack      bigint NOT NULL,
    relies_on bigint NOT NULL,
    PRIMARY KEY (pack, relies_on)
);

-- +goose Down
DROP TABLE pack_dependencies;
DROP TABLE chunks;
DROP TABLE pages;
