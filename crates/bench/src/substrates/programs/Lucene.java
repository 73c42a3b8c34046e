// Lucene, which maps the files of its index. Documents and queries have words by Zipf's law. A query asks for two words, and the best documents
// that have both are read.
import java.nio.file.Path;
import java.util.Arrays;
import java.util.SplittableRandom;
import org.apache.lucene.analysis.Analyzer;
import org.apache.lucene.analysis.standard.StandardAnalyzer;
import org.apache.lucene.document.Document;
import org.apache.lucene.document.Field;
import org.apache.lucene.document.TextField;
import org.apache.lucene.index.DirectoryReader;
import org.apache.lucene.index.IndexWriter;
import org.apache.lucene.index.IndexWriterConfig;
import org.apache.lucene.index.StoredFields;
import org.apache.lucene.index.Term;
import org.apache.lucene.search.BooleanClause;
import org.apache.lucene.search.BooleanQuery;
import org.apache.lucene.search.IndexSearcher;
import org.apache.lucene.search.ScoreDoc;
import org.apache.lucene.search.TermQuery;
import org.apache.lucene.store.MMapDirectory;

public class Lucene extends Program {
    static final int WORDS = 50000, LENGTH = 60, QUERIES = 4, ANSWERS = 10;
    // Bytes of the index for a document, about.
    static final int DOCUMENT = 300;
    final double[] upTo = new double[WORDS];
    IndexSearcher searcher;
    StoredFields texts;

    public static void main(String[] args) throws Exception {
        new Lucene().start(args);
    }

    Lucene() {
        double sum = 0;
        for (int word = 0; word < WORDS; word++) upTo[word] = sum += Math.pow(word + 1, -1.1);
    }

    String word(SplittableRandom chance) {
        int found = Arrays.binarySearch(upTo, chance.nextDouble() * upTo[WORDS - 1]);
        return "w" + (found < 0 ? -found - 1 : found);
    }

    void make(String data, long bytes) throws Exception {
        Analyzer analyzer = new StandardAnalyzer();
        IndexWriterConfig config = new IndexWriterConfig(analyzer).setRAMBufferSizeMB(8);
        try (MMapDirectory files = new MMapDirectory(Path.of(data)); IndexWriter writer = new IndexWriter(files, config)) {
            SplittableRandom chance = new SplittableRandom(1);
            for (long number = 0; number < bytes / DOCUMENT; number++) {
                StringBuilder text = new StringBuilder();
                for (int word = 0; word < LENGTH; word++) text.append(word(chance)).append(' ');
                Document document = new Document();
                document.add(new TextField("text", text.toString(), Field.Store.YES));
                writer.addDocument(document);
            }
            writer.forceMerge(1);
        }
    }

    void open(String data) throws Exception {
        DirectoryReader reader = DirectoryReader.open(new MMapDirectory(Path.of(data)));
        searcher = new IndexSearcher(reader);
        searcher.setQueryCache(null);
        texts = reader.storedFields();
    }

    int operations() {
        return QUERIES;
    }

    long batch(long number) throws Exception {
        SplittableRandom chance = new SplittableRandom(~number);
        long sum = 0;
        for (int query = 0; query < QUERIES; query++) {
            BooleanQuery.Builder both = new BooleanQuery.Builder();
            for (int word = 0; word < 2; word++) both.add(new TermQuery(new Term("text", word(chance))), BooleanClause.Occur.MUST);
            for (ScoreDoc found : searcher.search(both.build(), ANSWERS).scoreDocs) {
                sum = sum * 31 + texts.document(found.doc).get("text").hashCode();
            }
        }
        return sum;
    }
}
