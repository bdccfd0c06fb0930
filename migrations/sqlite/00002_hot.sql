-- The hot tables, written in bulk and by hand. internal/index says what they mean.

-- +goose Up
INSERT INTO schema_versions (version, oldest) VALUES (2, 2);

-- A version of a page, valid from first_snapshot to last_snapshot of its shard; NULL: still current.
-- The listing is last: rows are read up to the last column that is asked for.
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
-- A subtree is one range of this index; keys have no limit here. It has all that a mark has, so that an
-- unchanged tree is compared without a look at the table.
CREATE INDEX pages_path ON pages (shard, path_key, page, first_snapshot, last_snapshot, fingerprint, directory);
-- A directory that was moved, by its inode.
CREATE INDEX pages_inode ON pages (shard, inode) WHERE page = 0 AND inode <> 0;
-- What one snapshot began and ended: its segment, its undo, and garbage collection.
CREATE INDEX pages_first ON pages (shard, first_snapshot);
CREATE INDEX pages_last ON pages (shard, last_snapshot) WHERE last_snapshot IS NOT NULL;

-- Where a chunk is: the pack is packs.id.
CREATE TABLE chunks (
    id           BLOB    NOT NULL PRIMARY KEY,
    pack         INTEGER NOT NULL,
    frame        INTEGER NOT NULL,
    frame_offset INTEGER NOT NULL,
    length       INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- What list chunks refer to, so that what is alive is known without a key: ids of 16 bytes each, of list chunks
-- again where nested.
CREATE TABLE chunk_lists (
    list   BLOB    NOT NULL PRIMARY KEY,
    nested INTEGER NOT NULL,
    chunks BLOB    NOT NULL
) STRICT;

-- Catalogs that are in the store, by their sequence.
CREATE TABLE catalogs (
    sequence INTEGER NOT NULL PRIMARY KEY,
    digest   BLOB    NOT NULL, -- of what it says
    written  INTEGER NOT NULL -- microseconds since 1970
) STRICT;

-- Further places of chunks: two packs may come with the same chunk.
CREATE TABLE chunk_copies (
    id           BLOB    NOT NULL,
    pack         INTEGER NOT NULL,
    frame        INTEGER NOT NULL,
    frame_offset INTEGER NOT NULL,
    length       INTEGER NOT NULL,
    PRIMARY KEY (id, pack)
) STRICT, WITHOUT ROWID;

-- Pages that snapshots left which were not committed: the next snapshot of the shard takes over content that they name.
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
