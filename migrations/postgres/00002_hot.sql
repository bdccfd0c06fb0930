-- The hot tables: they are written in bulk, and defined by hand. internal/index documents them.

-- +goose Up
INSERT INTO schema_versions (version, oldest) VALUES (2, 2);

-- A version of a page is valid from first_snapshot to last_snapshot of its shard. NULL means that
-- it is still current. directory and fingerprint have 128 bits, which uuid stores without a length.
-- Wide columns come last, so that reading the key columns does not pass over them.
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
-- Listings are compressed with zstd already. The default storage would try to compress them again.
ALTER TABLE pages ALTER COLUMN listing SET STORAGE EXTERNAL;

-- A subtree is one range of this index. A btree key has at most 2,704 bytes, so the index contains
-- a prefix of the path key, and queries must also compare the whole key.
CREATE INDEX pages_path ON pages (shard, substring(path_key FROM 1 FOR 1024));
-- To find a moved directory by its inode.
CREATE INDEX pages_inode ON pages (shard, inode) WHERE page = 0 AND inode <> 0;
-- To find the versions that one snapshot began and ended: for its segment, its undo, and garbage
-- collection.
CREATE INDEX pages_first ON pages (shard, first_snapshot);
CREATE INDEX pages_last ON pages (shard, last_snapshot) WHERE last_snapshot IS NOT NULL;

-- The place of a chunk. pack is packs.id. Ids are hashes, so their first digit distributes them as
-- well as another hash would, and a lookup of many ids can sort them by partition.
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

-- The references of list chunks, so that live chunks can be found without a key: ids of 16 bytes
-- each. If nested, they are the ids of list chunks.
CREATE TABLE chunk_lists (
    list   uuid    NOT NULL PRIMARY KEY,
    nested boolean NOT NULL,
    chunks bytea   NOT NULL
);
ALTER TABLE chunk_lists ALTER COLUMN chunks SET STORAGE EXTERNAL;

-- The catalogs in the store, by their sequence.
CREATE TABLE catalogs (
    sequence bigint NOT NULL PRIMARY KEY,
    digest   bytea  NOT NULL, -- of its content
    written  bigint NOT NULL -- microseconds since 1970
);

-- Further places of chunks: two packs may contain the same chunk.
CREATE TABLE chunk_copies (
    id           uuid    NOT NULL,
    pack         bigint  NOT NULL,
    frame        integer NOT NULL,
    frame_offset integer NOT NULL,
    length       integer NOT NULL,
    PRIMARY KEY (id, pack)
);

-- Pages that are left from snapshots that were not committed. The next snapshot of the shard reuses
-- the content that they name.
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
