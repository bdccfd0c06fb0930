-- The hot tables: they are written in bulk, and defined by hand. internal/index documents them.

-- +goose Up
INSERT INTO schema_versions (version, oldest) VALUES (2, 2);

-- A version of a page is valid from first_snapshot to last_snapshot of its shard. NULL means that
-- it is still current. The listing comes last, because SQLite reads rows up to the last requested
-- column.
CREATE TABLE pages (
    shard          INTEGER NOT NULL,
    page           INTEGER NOT NULL,
    first_snapshot INTEGER NOT NULL,
    last_snapshot  INTEGER,
    inode          INTEGER NOT NULL,
    directory      BLOB    NOT NULL,
    fingerprint    BLOB    NOT NULL,
    digest         BLOB    NOT NULL, -- of the whole row: listing.Digest
    path_key       BLOB    NOT NULL,
    listing        BLOB    NOT NULL
) STRICT;
CREATE UNIQUE INDEX pages_key ON pages (shard, directory, page, first_snapshot);
-- A subtree is one range of this index. Keys have no limit here. The index contains all columns of
-- a mark, so that an unchanged tree is compared without reading the table.
CREATE INDEX pages_path ON pages (shard, path_key, page, first_snapshot, last_snapshot, fingerprint, directory);
-- To find a moved directory by its inode.
CREATE INDEX pages_inode ON pages (shard, inode) WHERE page = 0 AND inode <> 0;
-- To find the versions that one snapshot began and ended: for its segment, its undo, and garbage
-- collection.
CREATE INDEX pages_first ON pages (shard, first_snapshot);
CREATE INDEX pages_last ON pages (shard, last_snapshot) WHERE last_snapshot IS NOT NULL;

-- The place of a chunk. pack is packs.id.
CREATE TABLE chunks (
    id           BLOB    NOT NULL PRIMARY KEY,
    pack         INTEGER NOT NULL,
    frame        INTEGER NOT NULL,
    frame_offset INTEGER NOT NULL,
    length       INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- The references of list chunks, so that live chunks can be found without a key: ids of 16 bytes
-- each. If nested, they are the ids of list chunks.
CREATE TABLE chunk_lists (
    list   BLOB    NOT NULL PRIMARY KEY,
    nested INTEGER NOT NULL,
    chunks BLOB    NOT NULL
) STRICT;

-- The catalogs in the store, by their sequence.
CREATE TABLE catalogs (
    sequence INTEGER NOT NULL PRIMARY KEY,
    digest   BLOB    NOT NULL, -- of what it says
    written  INTEGER NOT NULL -- microseconds since 1970
) STRICT;

-- Further places of chunks: two packs may contain the same chunk.
CREATE TABLE chunk_copies (
    id           BLOB    NOT NULL,
    pack         INTEGER NOT NULL,
    frame        INTEGER NOT NULL,
    frame_offset INTEGER NOT NULL,
    length       INTEGER NOT NULL,
    PRIMARY KEY (id, pack)
) STRICT, WITHOUT ROWID;

-- Pages that are left from snapshots that were not committed. The next snapshot of the shard reuses
-- the content that they name.
CREATE TABLE interrupted_pages (
    shard     INTEGER NOT NULL,
    page      INTEGER NOT NULL,
    directory BLOB    NOT NULL,
    listing   BLOB    NOT NULL
) STRICT;
CREATE UNIQUE INDEX interrupted_pages_key ON interrupted_pages (shard, directory, page);

-- +goose Down
DROP TABLE interrupted_pages;
DROP TABLE chunk_copies;
DROP TABLE catalogs;
DROP TABLE chunk_lists;
DROP TABLE chunks;
DROP TABLE pages;
DELETE FROM schema_versions WHERE version = 2;
