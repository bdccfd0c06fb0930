-- The hot tables, written in bulk and by hand. internal/index says what they mean.

-- +goose Up
INSERT INTO schema_versions (version, oldest) VALUES (2, 2);

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
    digest         bytea  NOT NULL, -- of the whole row: listing.Digest
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

-- Where a chunk is: the pack is packs.id. Ids are hashes, so that their first digit spreads them as well as another
-- hash would, and whoever looks many up can sort them by partition.
CREATE TABLE chunks (
    id           uuid    NOT NULL,
    pack         bigint  NOT NULL,
    frame        integer NOT NULL,
    frame_offset integer NOT NULL,
    length       integer NOT NULL,
    PRIMARY KEY (id)
) PARTITION BY RANGE (id);
CREATE TABLE chunks_0 PARTITION OF chunks FOR VALUES FROM (MINVALUE) TO ('10000000-0000-0000-0000-000000000000');
CREATE TABLE chunks_1 PARTITION OF chunks FOR VALUES FROM ('10000000-0000-0000-0000-000000000000') TO ('20000000-0000-0000-0000-000000000000');
CREATE TABLE chunks_2 PARTITION OF chunks FOR VALUES FROM ('20000000-0000-0000-0000-000000000000') TO ('30000000-0000-0000-0000-000000000000');
CREATE TABLE chunks_3 PARTITION OF chunks FOR VALUES FROM ('30000000-0000-0000-0000-000000000000') TO ('40000000-0000-0000-0000-000000000000');
CREATE TABLE chunks_4 PARTITION OF chunks FOR VALUES FROM ('40000000-0000-0000-0000-000000000000') TO ('50000000-0000-0000-0000-000000000000');
CREATE TABLE chunks_5 PARTITION OF chunks FOR VALUES FROM ('50000000-0000-0000-0000-000000000000') TO ('60000000-0000-0000-0000-000000000000');
CREATE TABLE chunks_6 PARTITION OF chunks FOR VALUES FROM ('60000000-0000-0000-0000-000000000000') TO ('70000000-0000-0000-0000-000000000000');
CREATE TABLE chunks_7 PARTITION OF chunks FOR VALUES FROM ('70000000-0000-0000-0000-000000000000') TO ('80000000-0000-0000-0000-000000000000');
CREATE TABLE chunks_8 PARTITION OF chunks FOR VALUES FROM ('80000000-0000-0000-0000-000000000000') TO ('90000000-0000-0000-0000-000000000000');
CREATE TABLE chunks_9 PARTITION OF chunks FOR VALUES FROM ('90000000-0000-0000-0000-000000000000') TO ('a0000000-0000-0000-0000-000000000000');
CREATE TABLE chunks_a PARTITION OF chunks FOR VALUES FROM ('a0000000-0000-0000-0000-000000000000') TO ('b0000000-0000-0000-0000-000000000000');
CREATE TABLE chunks_b PARTITION OF chunks FOR VALUES FROM ('b0000000-0000-0000-0000-000000000000') TO ('c0000000-0000-0000-0000-000000000000');
CREATE TABLE chunks_c PARTITION OF chunks FOR VALUES FROM ('c0000000-0000-0000-0000-000000000000') TO ('d0000000-0000-0000-0000-000000000000');
CREATE TABLE chunks_d PARTITION OF chunks FOR VALUES FROM ('d0000000-0000-0000-0000-000000000000') TO ('e0000000-0000-0000-0000-000000000000');
CREATE TABLE chunks_e PARTITION OF chunks FOR VALUES FROM ('e0000000-0000-0000-0000-000000000000') TO ('f0000000-0000-0000-0000-000000000000');
CREATE TABLE chunks_f PARTITION OF chunks FOR VALUES FROM ('f0000000-0000-0000-0000-000000000000') TO (MAXVALUE);

-- What list chunks refer to, so that what is alive is known without a key: ids of 16 bytes each, of list chunks
-- again where nested.
CREATE TABLE chunk_lists (
    list   uuid    NOT NULL PRIMARY KEY,
    nested boolean NOT NULL,
    chunks bytea   NOT NULL
);
ALTER TABLE chunk_lists ALTER COLUMN chunks SET STORAGE EXTERNAL;

-- Catalogs that are in the store, by their sequence.
CREATE TABLE catalogs (
    sequence bigint NOT NULL PRIMARY KEY,
    digest   bytea  NOT NULL, -- of what it says
    written  bigint NOT NULL -- microseconds since 1970
);

-- Further places of chunks: two packs may come with the same chunk.
CREATE TABLE chunk_copies (
    id           uuid    NOT NULL,
    pack         bigint  NOT NULL,
    frame        integer NOT NULL,
    frame_offset integer NOT NULL,
    length       integer NOT NULL,
    PRIMARY KEY (id, pack)
);

-- Pages that snapshots left which were not committed: the next snapshot of the shard takes over content that they name.
CREATE TABLE interrupted_pages (
    shard     bigint NOT NULL,
    page      bigint NOT NULL,
    directory uuid   NOT NULL,
    listing   bytea  NOT NULL,
    PRIMARY KEY (shard, directory, page)
);
ALTER TABLE interrupted_pages ALTER COLUMN listing SET STORAGE EXTERNAL;

-- +goose Down
DROP TABLE interrupted_pages;
DROP TABLE chunk_copies;
DROP TABLE catalogs;
DROP TABLE chunk_lists;
DROP TABLE chunks;
DROP TABLE pages;
DELETE FROM schema_versions WHERE version = 2;
